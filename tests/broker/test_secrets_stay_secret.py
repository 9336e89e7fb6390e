"""Promise I: a secret is planted, changed while the relay runs, and searched for in everything that is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from harness import Flow, Records, by_partition, finish, wait_until

from mirrorlake.lab import ClusterSpec, Lab, LabCluster, certs

OLD, NEW = 'canary-old-"7f3a\\9c', 'canary-new-"51be\\02'
FORMS = {"canary-old", "canary-new"}  # however the rest is escaped, this part shows
KEEP = {"log.retention.ms": "-1", "ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}


@pytest.fixture
def own(tmp_path: Path, small_brokers: None) -> Iterator[Lab]:
    # The test itself comes as bob, whose password stays.
    scram = {"users": {"bob": "bob's", "ann": OLD}, "mechanisms": ("SCRAM-SHA-512",), "config": KEEP}
    with Lab(tmp_path / "lab") as lab:
        lab.up([ClusterSpec(name, protocol="SASL_SSL", **scram) for name in ("source", "target")])  # type: ignore[arg-type]
        yield lab


def change_password(cluster: LabCluster, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    admin = cluster.admin()
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("ann", info, password.encode())]
    ).values():
        future.result(20)


def renew_certificates(cluster: LabCluster) -> bytes:
    """Another authority, and a certificate of it; returns what clients must trust from now on."""
    ca = certs.authority("the next CA")
    (cluster.folder / "broker.pem").write_bytes(certs.issue(ca, "broker").pem + ca.certificate_pem)
    return ca.certificate_pem


def restart(cluster: LabCluster) -> None:
    """All connections break, and all clients log in anew."""
    cluster.stop_broker(0)
    cluster.start_broker(0)


def test_secrets_rotate_without_loss_and_are_found_nowhere(tmp_path: Path, own: Lab) -> None:
    records, topic = Records(own), "rotated"
    flow = Flow(tmp_path, own, None, [topic], ["target"], {})  # type: ignore[arg-type]
    held = tmp_path / "held"
    held.mkdir()
    secret, cas = held / "password", {name: held / f"{name}.pem" for name in ("source", "target")}
    secret.write_text(OLD)
    for name, ca in cas.items():
        ca.write_bytes((own.cluster(name).folder / "ca.pem").read_bytes())
    path = write(flow, secret, cas)
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(100, 2))
    environment = {"MIRRORLAKE_DEBUG": "1", "SPARK_LOCAL_DIRS": str(tmp_path / "spark-tmp"), "TMPDIR": str(tmp_path)}
    running = flow.command("--debug", "run", "-c", str(path), "--log-format", "json", environment=environment)
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", 100), "the first records", 240)
        seen = processes_text(running.pid)
        assert "mirrorlake" in seen
        rotate(own, secret, cas)
        records.clients.clear()
        records.send("source", topic, records.numbered(100, 2, first=100))
        wait_until(lambda: records.arrived("target", f"source.{topic}", 200), "records after the rotation", 240)
    finally:
        running.send_signal(signal.SIGTERM)
        code, said = finish(running, 180)
    assert code == 0, said[-3000:]
    assert "waiting" in said  # it was refused, and did not stop
    assert records.read("target", f"source.{topic}") == by_partition(records.numbered(200, 2))
    leaks = [*found_in_files(tmp_path, ignored={held, tmp_path / "lab"}), *(f for f in FORMS if f in seen + said)]
    assert leaks == []
    secret.write_text(OLD)
    code, said = finish(flow.command("--debug", "run", "-c", str(path), "--once"), 180)
    assert (code, "Traceback" in said, [form for form in FORMS if form in said]) == (3, True, [])
    # The search finds what is there: else it would prove nothing.
    (flow.root / "planted").write_text(f"x{OLD}x")
    pq.write_table(pa.table({"value": [OLD]}), flow.root / "planted.parquet", compression="zstd")
    found = found_in_files(tmp_path, ignored={held, tmp_path / "lab"})
    assert sorted(found) == [str(flow.root / "planted"), str(flow.root / "planted.parquet")]


def rotate(own: Lab, secret: Path, cas: dict[str, Path]) -> None:
    """Password, certificate and authority of both clusters change; what clients need comes a little later."""
    trusted = {}
    for name in ("source", "target"):
        cluster = own.cluster(name)
        change_password(cluster, NEW)
        trusted[name] = renew_certificates(cluster)
        restart(cluster)
    secret.write_text(NEW)
    for name, ca in cas.items():
        ca.write_bytes(trusted[name])
        (own.cluster(name).folder / "ca.pem").write_bytes(trusted[name])  # for the clients of the test


def write(flow: Flow, secret: Path, cas: dict[str, Path]) -> Path:
    path = flow.write()
    content = yaml.safe_load(path.read_text())
    for name, cluster in content["clusters"].items():
        cluster["security"] |= {"username": "ann", "password": f"${{file:{secret}}}", "ca": str(cas[name])}
        cluster["client"] = {"debug": "all"}
    events = flow.folder / "events"
    events.mkdir()
    content["runner"] |= {
        "spark_log_level": "debug",
        "spark": {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{events}",
        },
    }
    path.write_text(yaml.safe_dump(content))
    return path


def processes_text(pid: int) -> str:
    """Command lines of the runner and all that it started, as `ps` shows them. Environments are not shown to others."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(entry.name)) == pid:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)


def found_in_files(folder: Path, ignored: set[Path]) -> list[str]:
    """Every file below that holds a secret."""
    leaks = []
    for path in folder.rglob("*"):
        if path.is_file() and not any(each in path.parents for each in ignored):
            content = content_of(path)
            if any(form.encode() in content or form.encode("utf-16-be") in content for form in FORMS):
                leaks.append(str(path))
    return leaks


def content_of(path: Path) -> bytes:
    """What a file holds; tables are compressed, so their rows are read."""
    if path.suffix == ".parquet":
        return repr(pq.ParquetFile(path).read().to_pylist()).encode()
    return path.read_bytes()
