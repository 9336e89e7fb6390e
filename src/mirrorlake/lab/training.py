"""One short relay between real brokers, from which Java keeps what it loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

from confluent_kafka import Producer

from mirrorlake import jars
from mirrorlake.config import parse
from mirrorlake.kafka import QUIET, Cluster
from mirrorlake.lab.brokers import Lab, Say
from mirrorlake.lab.settings import ClusterSpec
from mirrorlake.runner import Run
from mirrorlake.world import kept_classes

FLOW = """
clusters:
  source: {{bootstrap_servers: "{source}", allow_insecure: true}}
  target: {{bootstrap_servers: "{target}", allow_insecure: true}}
storage: {{root: {root}}}
flows:
  training: {{source: source, topics: [training], targets: [{{cluster: target}}]}}
"""


def keep_classes(say: Say) -> Path:
    """The archive; made where this Java has none for these jars yet."""
    jars.resolve(jars.SPARK, say)
    if not (kept := kept_classes()).exists():
        say("keeping Java's classes, so that later starts are quicker: about half a minute, once on this machine")
        with tempfile.TemporaryDirectory(prefix="mirrorlake-training-") as folder:
            _relay(Path(folder))
    return kept


def _relay(folder: Path) -> None:
    with Lab(folder / "lab") as lab:
        clusters = lab.up([ClusterSpec("source"), ClusterSpec("target")])
        settings = clusters["source"].client_config()
        source = Cluster("source", settings)
        source.create_topic("training", 2, 1, {})
        producer = Producer({**settings, **QUIET})
        for number in range(1000):
            producer.produce("training", b"%d" % number)
        producer.flush()
        source.close()
        servers = {name: cluster.bootstrap_servers for name, cluster in clusters.items()}
        Run(parse(FLOW.format(root=folder / "root", **servers), "training"), once=True, keep_classes=True)()
