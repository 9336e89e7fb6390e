"""A topic's configuration as on the source: MM2's rules, and only differences."""

from __future__ import annotations

import pytest

from mirrorlake.config import ConfigSync
from mirrorlake.configsync import drifted, setting_changes, wanted_settings
from mirrorlake.kafka import TopicSetting

SOURCE = {
    "cleanup.policy": TopicSetting("compact"),
    "retention.ms": TopicSetting("604800000", "default"),
    "segment.bytes": TopicSetting("1048576", "dynamic_broker"),
    "flush.ms": TopicSetting("5", "static_broker"),
    "min.insync.replicas": TopicSetting("2"),
    "local.thing": TopicSetting("x", fixed=True),
}


def test_what_the_source_says_for_itself_is_wanted_and_its_defaults_are_taken_back() -> None:
    assert wanted_settings(SOURCE, ConfigSync()) == {
        "cleanup.policy": "compact",
        "retention.ms": None,
        "segment.bytes": "1048576",
    }


def test_defaults_of_the_source_are_set_where_asked_for() -> None:
    assert wanted_settings(SOURCE, ConfigSync(use_defaults_from="source"))["retention.ms"] == "604800000"


@pytest.mark.parametrize(
    ("exclude", "wanted"),
    [
        pytest.param([], True, id="nothing"),
        pytest.param(["cleanup"], True, id="a part of the key"),
        pytest.param(["cleanup.policy"], False, id="the key"),
        pytest.param([r"cleanup\..*"], False, id="an expression"),
    ],
)
def test_an_exclusion_matches_the_whole_key_and_replaces_the_defaults(exclude: list[str], wanted: bool) -> None:
    found = wanted_settings(SOURCE, ConfigSync(exclude=exclude))
    assert ("cleanup.policy" in found) == wanted
    assert "min.insync.replicas" in found


def test_only_differences_change_and_the_targets_own_keys_stay() -> None:
    wanted = {"cleanup.policy": "compact", "retention.ms": None, "segment.bytes": "1", "max.message.bytes": None}
    there = {
        "cleanup.policy": TopicSetting("compact"),
        "retention.ms": TopicSetting("7"),
        "segment.bytes": TopicSetting("1", "static_broker"),
        "max.message.bytes": TopicSetting("9", "static_broker"),
        "min.insync.replicas": TopicSetting("1"),
    }
    # What a broker says for all topics is not what the topic says for itself: it may change there tomorrow.
    assert setting_changes(wanted, there) == {"retention.ms": None, "segment.bytes": "1"}


def test_a_key_that_the_targets_release_does_not_know_is_left_out() -> None:
    wanted = {"message.format.version": "0.10.2", "retention.ms": "5"}
    assert setting_changes(wanted, {"retention.ms": TopicSetting("7", "default")}) == {"retention.ms": "5"}


def test_a_topic_that_is_not_there_yet_gets_what_is_set() -> None:
    assert setting_changes({"cleanup.policy": "compact", "retention.ms": None}, {}) == {"cleanup.policy": "compact"}


def test_a_difference_is_drift_only_where_the_source_asks_for_what_it_asked_before() -> None:
    wanted = {"t": {"a": "1", "b": "2"}}
    alters = {"t": {"a": "1", "b": "2"}}
    assert drifted(alters, wanted, {}) == {}, "nothing is known of before"
    assert drifted(alters, wanted, {"t": {"a": "1", "b": "9"}}) == {"t": ["a"]}
    assert drifted({"t": {"c": None}}, {"t": {"c": None}}, {"t": {"c": None}}) == {"t": ["c"]}, "taken back before"
    assert drifted({"t": {"c": None}}, {"t": {"c": None}}, {"t": {}}) == {}, "not asked before"
