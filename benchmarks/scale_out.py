"""Throughput against the number of executors: one flow on a real standalone Spark cluster.

    python benchmarks/scale_out.py [--records 1000000] [--executors 1,2] [--rounds 2] [--json FILE]

A master and workers with a core each, as processes on this machine, which carries the brokers and the driver too: more
executors than cores say nothing. The rate is that between 30 and 95 % of the records on the target, both legs at work:
the flow runs until all is delivered, and is stopped then. docs/write_performance.py puts the file on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.bench.measure import delivered_to
from mirrorlake.bench.records import check_copy, load
from mirrorlake.bench.scenarios import END_SHARE, WARM_SHARE
from mirrorlake.kafka import Cluster
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.lab.standalone import standalone

PARTITIONS = 4
PATIENCE_SECONDS = 300
KEPT = Path(__file__).with_name("results") / "scale_out.json"


def configured(lab: Lab, root: Path, spark: dict[str, str], topic: str) -> Path:
    content = {
        "clusters": {alias: lab.cluster(alias).cluster_yaml() for alias in ("src", "dst")},
        "storage": {"root": str(root / "state")},
        "runner": {"spark": spark},
        "flows": {"f": {"source": "src", "topics": [topic], "targets": [{"cluster": "dst", "replication_factor": 1}]}},
    }
    path = root / "flow.yml"
    path.write_text(yaml.safe_dump(content))
    return path


def measured(lab: Lab, root: Path, executors: int, topic: str, records: int) -> dict[str, float]:
    """One run, from nothing."""
    source, target = (Cluster(alias, lab.cluster(alias).client_config()) for alias in ("src", "dst"))
    with standalone(root / "spark", executors) as spark:
        # Not --once, which reads all before it sends: the steady rate would be that of sending alone.
        command = [sys.executable, "-m", "mirrorlake.cli", "run", "-c", str(configured(lab, root, spark, topic))]
        begun = time.monotonic()
        with (root / "said.txt").open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as run:
            try:
                samples = watched(run, target, f"src.{topic}", records, begun)
            finally:
                run.terminate()
            assert (run.wait(), samples[-1][1]) == (0, records), (root / "said.txt").read_text()[-2000:]
    check_copy(source, topic, target, f"src.{topic}", PARTITIONS)
    target.admin.delete_topics([f"src.{topic}"])[f"src.{topic}"].result()
    warm, end = (next(at for at, count in samples if count >= share * records) for share in (WARM_SHARE, END_SHARE))
    return {
        "first_record_seconds": round(next(at for at, count in samples if count), 1),
        "seconds": round(samples[-1][0], 1),
        "steady_records_per_second": round((END_SHARE - WARM_SHARE) * records / (end - warm)),
    }


def watched(run: Any, target: Cluster, copy: str, records: int, begun: float) -> list[tuple[float, int]]:
    samples = [(0.0, 0)]
    while samples[-1][1] < records and run.poll() is None:
        time.sleep(0.1)
        samples.append((time.monotonic() - begun, delivered_to([target], copy, PARTITIONS)))
        assert samples[-1][0] < PATIENCE_SECONDS, "the run takes too long"
    return samples


def measure(given: argparse.Namespace, root: Path) -> dict[str, Any]:
    begun_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    counts = [int(text) for text in given.executors.split(",")]
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with Lab(root / "lab") as lab:
        lab.up([ClusterSpec("src"), ClusterSpec("dst")])
        clients = lab.cluster("src").client_config()
        Cluster("src", clients).create_topic("orders", PARTITIONS, 1, {})
        load(clients, "orders", PARTITIONS, given.records, 1000)
        for number in range(given.rounds):
            for count in counts if number % 2 == 0 else reversed(counts):
                with tempfile.TemporaryDirectory(dir=root) as folder:
                    found[count].append(measured(lab, Path(folder), count, "orders", given.records))
                print(f"{count} executors: {found[count][-1]}", file=sys.stderr, flush=True)
    return {"at": begun_at, "command": asked(given), "records": given.records, "cores": os.cpu_count(), "runs": found}


def asked(given: argparse.Namespace) -> str:
    options = (f"--{name} {getattr(given, name)}" for name in ("records", "executors", "rounds"))
    return " ".join(["python benchmarks/scale_out.py", *options])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--executors", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=KEPT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scale-out-") as folder:
        text = json.dumps(measure(given, Path(folder)), indent=1)
    print(text)
    given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
