"""The page on topics names a test for each of MM2's own scenarios: those tests exist, under the scenario's name."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKER = ROOT / "tests" / "broker"
PAGE = (ROOT / "docs" / "topics.md").read_text()
SECTION = PAGE.partition("## MM2's own test scenarios")[2].partition("\n## ")[0]
SCENARIOS = (
    "testReplication", "testReplicationWithEmptyPartition", "testOneWayReplicationWithAutoOffsetSync",
    "testOneWayReplicationWithFrequentOffsetSyncs", "testReplicationWithoutOffsetSyncWillNotCreateOffsetSyncsTopic",
    "testOffsetSyncsTopicsOnTarget", "testNoCheckpointsIfNoRecordsAreMirrored", "testRestartReplication",
    "testOffsetTranslationBehindReplicationFlow", "testSyncTopicConfigs", "testReplicateSourceDefault",
    "testReplicateTargetDefault", "testReplicateFromLatest",
)  # fmt: skip


def defined_in(module: str) -> set[str]:
    """The tests of a module, without running it: that would need brokers."""
    path = BROKER / f"{module}.py"
    nodes = ast.parse(path.read_text()).body if path.exists() else []
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_has_a_test_of_its_name(scenario: str) -> None:
    (row,) = re.findall(rf"^\| {scenario} \| (.*) \|$", SECTION, re.M)
    named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
    assert snake(scenario) in {test for _, test in named}


@pytest.mark.parametrize("reference", sorted(set(re.findall(r"`(test_\w+(?:::test_\w+)?)`", PAGE))))
def test_every_test_that_the_page_names_exists(reference: str) -> None:
    module, _, test = reference.partition("::")
    found = defined_in(module)
    assert test in found if test else found
