"""Some rows of the fault table (`tests/chaos/rows`, `make chaos` runs all): the network, brokers, state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirrorlake.lab import ClusterSpec, Lab

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from rows import BY_SLUG, ROWS
from stage import Stage, make_proxied

CHOSEN = ("12", "16c", "16d", "17b", "21c", "24", "24b", "24c", "24d", "28", "28e", "46b", "47b", "49", "50", "56f")


@pytest.fixture(scope="module")
def stage(lab: Lab, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The clusters of the other tests, and one behind a proxy that a test may break."""
    spec = ClusterSpec("shaky", config={"log.retention.ms": "-1"})
    proxy = make_proxied(lab, spec)
    lab.up([spec])
    yield Stage(tmp_path_factory.mktemp("faults"), lab, spark, {"shaky": proxy})
    lab.down(["shaky"])
    proxy.close()


@pytest.mark.parametrize("name", [name for name, row in BY_SLUG.items() if row.number in CHOSEN])
def test_a_row_of_the_fault_table(stage: Stage, name: str) -> None:
    try:
        BY_SLUG[name].run(stage)
    finally:
        stage.settle()


def test_every_row_has_a_number_and_a_name_of_its_own() -> None:
    assert len({row.number for row in ROWS}) == len({row.name for row in ROWS}) == len(ROWS) >= 40
