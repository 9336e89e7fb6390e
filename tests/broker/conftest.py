"""Real clusters, started once for a run of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirrorlake.lab import ClusterSpec, Lab, LabCluster

HUBS_PASSWORD = 'Endpoint=sb://lab/;SharedAccessKey="a\\b=c"'

CLUSTERS = (
    ClusterSpec("source"),
    ClusterSpec("target"),
    ClusterSpec("hubs", protocol="SASL_SSL", users={"$ConnectionString": HUBS_PASSWORD}),
)


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
