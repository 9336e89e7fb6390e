"""The lab without a JVM: what is asked for, what Kafka is told, certificates, processes."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from mirrorlake import cli
from mirrorlake.errors import ClusterUnreachable, UsageFault
from mirrorlake.lab import ClusterSpec, Lab, LabCluster, certs, parse_spec, standalone
from mirrorlake.lab.processes import Process, stop
from mirrorlake.lab.settings import (
    PORTS,
    Ports,
    at_ports,
    free_ports,
    parse_ports,
    properties_text,
    server_properties,
)

THREE = {n: Ports(9000 + n, 9100 + n, 9200 + n) for n in range(3)}
HUBS = ClusterSpec("hubs", protocol="SASL_SSL", users={"$ConnectionString": 'a"b\\c', "other": "x"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source", ("source", "PLAINTEXT", 1)),
        ("dr:ssl", ("dr", "SSL", 1)),
        ("big:plaintext:3", ("big", "PLAINTEXT", 3)),
        ("big::3", ("big", "PLAINTEXT", 3)),
    ],
)
def test_a_cluster_is_asked_for_in_a_word(text: str, expected: tuple[str, str, int]) -> None:
    spec = parse_spec(text)
    assert (spec.name, spec.protocol, spec.brokers) == expected


def test_with_sasl_the_user_is_that_of_event_hubs() -> None:
    assert list(parse_spec("hubs:sasl_ssl").users) == ["$ConnectionString"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a/b", "the name may hold"),
        ("a:tls", "the protocol is one of"),
        ("a:ssl:0", "needs 1 to 9 brokers"),
        ("a:ssl:many", "not a number of brokers"),
        ("a:ssl:²", "not a number of brokers"),
    ],
)
def test_wrong_wishes_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageFault, match=reason):
        parse_spec(text)


def test_a_named_port_is_that_of_the_first_broker_and_the_others_take_the_next() -> None:
    specs = [parse_spec(text) for text in ("one", "three::3", "any")]
    placed = at_ports(specs, parse_ports(["three=9092", "one=1"]))
    assert [spec.ports for spec in placed] == [(1,), (9092, 9093, 9094), None]


def test_every_fault_of_the_named_ports_is_said() -> None:
    with pytest.raises(UsageFault) as fault:
        parse_ports(["a=1", "a=2", "b", "b=", "=9092", "b=-1", "b=x"])
    assert fault.value.what == (
        "--port: a is named twice; 'b' is not NAME=PORT; 'b=' is not NAME=PORT; '=9092' is not NAME=PORT; "
        "'b=-1' is not NAME=PORT; 'b=x' is not NAME=PORT"
    )
    assert "--port source=9092" in fault.value.next_step


@pytest.mark.parametrize(
    ("ports", "reason"),
    [
        (["b=9092"], "b is not among the clusters to start"),
        (["a=0"], "ports lie between 1 and 65535"),
        (["a=65534"], "ports lie between 1 and 65535"),  # and so does that of the last of three brokers
    ],
)
def test_ports_that_no_cluster_can_take_are_refused(ports: list[str], reason: str) -> None:
    with pytest.raises(UsageFault, match=reason):
        at_ports([parse_spec("a::3")], parse_ports(ports))


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_in_use_is_refused_with_2_before_anything_is_touched(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lab"
    wish = ["lab", "up", "source", "--port", f"source={taken_port}", "--root", str(root)]
    monkeypatch.setattr(sys, "argv", ["mirrorlake", *wish])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = " ".join(capsys.readouterr().err.split())
    assert left.value.code == 2
    assert f"lab cluster source cannot listen on 127.0.0.1:{taken_port}: Address already in use next: choose" in said
    assert not root.exists()


def test_two_clusters_cannot_have_one_port(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with pytest.raises(UsageFault, match=f"b and a cannot both listen on 127.0.0.1:{port}"):
        Lab(tmp_path).up([ClusterSpec("a", ports=(port,)), ClusterSpec("b", ports=(port,))])


def test_a_port_that_is_advertised_may_be_in_use_by_what_stands_before_the_broker(
    tmp_path: Path, taken_port: int
) -> None:
    behind = free_ports(1)[0]
    Lab(tmp_path)._refuse_taken_ports([ClusterSpec("far", ports=(taken_port,), listen_ports=(behind,))])
    with pytest.raises(UsageFault, match=f"far cannot listen on 127.0.0.1:{taken_port}"):
        Lab(tmp_path)._refuse_taken_ports([ClusterSpec("far", ports=(behind,), listen_ports=(taken_port,))])


def test_a_cluster_that_was_made_fits_only_the_ports_it_has(tmp_path: Path) -> None:
    made = LabCluster(tmp_path, ClusterSpec("a"), "id", {0: THREE[0]})
    assert made.fits(ClusterSpec("a"))
    assert made.fits(ClusterSpec("a", ports=(9000,)))
    assert not made.fits(ClusterSpec("a", ports=(9001,)))


def test_user_names_that_jaas_cannot_hold_are_refused() -> None:
    with pytest.raises(UsageFault, match="user name"):
        ClusterSpec("a", protocol="SASL_SSL", users={'x" y': "p"})


def test_a_spec_does_not_print_passwords() -> None:
    assert "a\\" not in repr(HUBS)


def test_ports_that_are_not_named_are_any_ports() -> None:
    assert ClusterSpec("a").same_shape(ClusterSpec("a", ports=(9092,)))
    assert not ClusterSpec("a", ports=(1,)).same_shape(ClusterSpec("a", ports=(2,)))
    assert not ClusterSpec("a").same_shape(ClusterSpec("a", brokers=3))


def test_each_of_three_brokers_is_in_the_quorum(tmp_path: Path) -> None:
    settings = server_properties(ClusterSpec("a", brokers=3), 1, THREE, tmp_path)
    assert settings["controller.quorum.voters"] == "0@127.0.0.1:9200,1@127.0.0.1:9201,2@127.0.0.1:9202"
    assert settings["advertised.listeners"].startswith("CLIENT://127.0.0.1:9001,")
    assert settings["offsets.topic.replication.factor"] == "3"
    assert settings["auto.create.topics.enable"] == "false"


def test_settings_of_the_user_win(tmp_path: Path) -> None:
    spec = ClusterSpec("a", config={"auto.create.topics.enable": "true", "message.max.bytes": "5"})
    settings = server_properties(spec, 0, THREE, tmp_path)
    assert (settings["auto.create.topics.enable"], settings["message.max.bytes"]) == ("true", "5")


def test_brokers_may_listen_behind_what_stands_before_them(tmp_path: Path) -> None:
    spec = ClusterSpec("far", listen_ports=(29_999,))
    settings = server_properties(spec, 0, {0: Ports(20_001, 20_002, 20_003)}, tmp_path)
    assert settings["listeners"].startswith("CLIENT://127.0.0.1:29999,")
    assert settings["advertised.listeners"].startswith("CLIENT://127.0.0.1:20001,")
    with pytest.raises(UsageFault, match="one port for each broker"):
        ClusterSpec("far", brokers=2, listen_ports=(29_999,))


def test_passwords_are_quoted_for_jaas_and_escaped_for_properties(tmp_path: Path) -> None:
    settings = server_properties(HUBS, 0, THREE, tmp_path)
    jaas = settings["listener.name.client.plain.sasl.jaas.config"]
    assert r'user_$ConnectionString="a\"b\\c" user_other="x";' in jaas
    assert r'user_$ConnectionString="a\\"b\\\\c"' in properties_text({"jaas": jaas})


def test_clients_get_both_dialects(tmp_path: Path) -> None:
    cluster = LabCluster(tmp_path, HUBS, "id", {0: THREE[0]})
    assert cluster.client_config()["sasl.username"] == "$ConnectionString"
    assert cluster.client_config("other")["sasl.password"] == "x"
    assert 'username="other"' in cluster.java_properties("other")["sasl.jaas.config"]
    assert cluster.ca_pem == tmp_path / "ca.pem"
    with pytest.raises(UsageFault, match="no user 'nobody'"):
        cluster.client_config("nobody")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_the_configuration_section_refers_to_the_password(tmp_path: Path, protocol: str) -> None:
    users = {"u": "hush"} if "SASL" in protocol else {}
    section = LabCluster(tmp_path, ClusterSpec("a", 1, protocol, users), "id", {0: THREE[0]}).cluster_yaml()
    assert section["security"]["protocol"] == protocol
    assert "hush" not in json.dumps(section)
    assert ("ca" in section["security"]) == protocol.endswith("SSL")
    if users:
        assert section["security"]["password"] == f"${{file:{tmp_path}/secrets.properties:u}}"


def test_free_ports_are_distinct_and_below_those_of_connections() -> None:
    ports = free_ports(30)
    assert len(set(ports)) == 30
    assert set(ports) <= set(PORTS)
    kept = set(PORTS[:40])
    assert set(free_ports(20, without=set(PORTS) - kept)) <= kept


def test_a_cluster_that_was_never_made_is_named_with_the_way_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="no lab cluster 'nope'") as fault:
        Lab(tmp_path).cluster("nope")
    assert fault.value.next_step == "mirrorlake lab up nope"


def test_a_worker_of_spark_that_registers_again_counts_once() -> None:
    said = "".join(f"INFO Master: Registering worker 127.0.0.1:{port} with 3 cores\n" for port in (1, 2, 1))
    assert standalone._registered(said) == {"127.0.0.1:1", "127.0.0.1:2"}


def test_certificates_come_from_their_authority_and_no_other() -> None:
    ca, other = certs.authority(), certs.authority()
    broker = certs.issue(ca, "broker")
    broker.certificate.verify_directly_issued_by(ca.certificate)
    with pytest.raises(InvalidSignature):
        broker.certificate.verify_directly_issued_by(other.certificate)


def test_certificates_name_the_hosts_they_are_for() -> None:
    wrong = certs.issue(certs.authority(), "broker", hosts=["elsewhere.example"])
    names = wrong.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["elsewhere.example"]
    assert names.get_values_for_type(x509.IPAddress) == []


def test_expired_certificates_can_be_made() -> None:
    expired = certs.issue(certs.authority(), "broker", valid_days=-1)
    assert expired.certificate.not_valid_after_utc < dt.datetime.now(dt.timezone.utc)


SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_process_is_found_again_and_stopped_even_when_paused(tmp_path: Path) -> None:
    record = tmp_path / "process.json"
    process = Process.start(SLEEPER, tmp_path / "out", record)
    assert Process.recorded(record) == process
    process.signal(signal.SIGSTOP)
    stop([process], grace_seconds=5)
    assert Process.recorded(record) is None


def test_a_process_id_used_again_is_not_ours(tmp_path: Path) -> None:
    record = tmp_path / "process.json"
    process = Process.start(SLEEPER, tmp_path / "out", record)
    record.write_text(json.dumps({"pid": process.pid, "started": "long ago"}))
    try:
        assert Process.recorded(record) is None
        stop([Process(process.pid, "long ago")], grace_seconds=0)
        assert process.alive()
    finally:
        stop([process], grace_seconds=5)


def test_a_broker_that_does_not_serve_in_time_is_given_up_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorlake.lab.brokers.READY_SECONDS", 0)
    logs = tmp_path / "broker-0" / "logs"
    logs.mkdir(parents=True)
    (logs / "server.log").write_text("still reading its log\n")
    process = Process.start(SLEEPER, logs / "stdout.log", tmp_path / "broker-0" / "process.json")
    try:
        with pytest.raises(ClusterUnreachable, match=r"was not ready within 0 seconds(?s:.*)still reading") as fault:
            LabCluster(tmp_path, ClusterSpec("slow"), "id", {0: Ports(1, 1, 1)}).await_ready(0, [0])
    finally:
        stop([process], grace_seconds=5)
    assert "--fresh" in fault.value.next_step


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("asked", "kept"), [("KEEP=1", True), ("KEEP=yes", True), ("KEEP=0", False), ("KEEP=no", False), ("KEEP=", False)]
)
def test_only_a_yes_leaves_the_demo_running(asked: str, kept: bool) -> None:
    command = ["make", "--no-print-directory", "--dry-run", "demo", asked]
    shown = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    assert shown.rstrip().endswith("--keep" if kept else "mirrorlake.demo")
