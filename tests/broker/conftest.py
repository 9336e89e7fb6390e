"""Real clusters and one Spark session, started once for a run of the tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Flow, Records
from pyspark.sql import SparkSession

from mirrorlake.config import parse
from mirrorlake.lab import ClusterSpec, Lab, LabCluster
from mirrorlake.world import spark_session

HUBS_PASSWORD = 'Endpoint=sb://lab/;SharedAccessKey="a\\b=c"'

# Tests send records with old timestamps, which the default retention would delete at once.
KEEP = {"log.retention.ms": "-1"}

CLUSTERS = (
    ClusterSpec("source", config=KEEP),
    ClusterSpec("target", config=KEEP),
    ClusterSpec("hubs", protocol="SASL_SSL", users={"$ConnectionString": HUBS_PASSWORD}, config=KEEP),
)


def pytest_sessionstart() -> None:
    """Whoever stops the tests with SIGTERM, a time limit most of all, must not leave brokers behind."""
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("stopped by SIGTERM", 143))
    # A shell's background job ignores SIGINT and so would what we start, also where a test interrupts it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def small_brokers() -> Iterator[None]:
    """Brokers that start fast: tests send little, so the second compiler tier would not pay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORLAKE_LAB_HEAP", "256m")
        patch.setenv("MIRRORLAKE_LAB_JVM", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, small_brokers: None) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        lab.up(CLUSTERS)
        yield lab


@pytest.fixture(scope="session")
def source(lab: Lab) -> LabCluster:
    return lab.cluster("source")


@pytest.fixture(scope="session")
def target(lab: Lab) -> LabCluster:
    return lab.cluster("target")


@pytest.fixture(scope="session")
def hubs(lab: Lab) -> LabCluster:
    """As Event Hubs is reached: SASL_SSL, PLAIN, the user `$ConnectionString`."""
    return lab.cluster("hubs")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that the embedded default makes, shared by all tests that run in this process."""
    root = tmp_path_factory.mktemp("spark")
    config = parse("clusters: {a: {bootstrap_servers: 'a:1'}, b: {bootstrap_servers: 'b:1'}}\n"
                   "flows: {f: {source: a, topics: [t], targets: [{cluster: b}]}}", "spark")  # fmt: skip
    session = spark_session(config, root)
    yield session
    session.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic named after the test."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:120].strip("-").lower()


@pytest.fixture
def make_flow(tmp_path: Path, lab: Lab, spark: SparkSession) -> Callable[..., Flow]:
    """A flow from `source`, with its own storage root."""

    def make(topics: list[str] | None = None, targets: list[str] | None = None, **options: object) -> Flow:
        return Flow(tmp_path, lab, spark, topics or [], targets or ["target"], dict(options))

    return make


@pytest.fixture(scope="session")
def records(lab: Lab) -> Iterator[Records]:
    made = Records(lab)
    yield made
    for asker in made.askers.values():
        asker.close()
