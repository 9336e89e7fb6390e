"""Which topics a flow takes, where they go, and what they are called there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mirrorlake.config import Cluster, Config, Flow, Target
from mirrorlake.errors import TopicMissing
from mirrorlake.kafka import TopicInfo
from mirrorlake.topics import (
    fit_names,
    flow_topics,
    matches_any,
    relay_specs,
    require_topics,
    spec_topics,
    takes,
    target_takes,
)


def target(**fields: Any) -> Target:
    return Target.model_validate({"cluster": "dr", **fields})


def flow(**fields: Any) -> Flow:
    return Flow.model_validate({"name": "f", "source": "src", "targets": [target()], **fields})


def config(made: Flow, **storage: str) -> Config:
    clusters = {alias: Cluster.model_validate({"bootstrap_servers": "h:9092"}) for alias in ("src", "dr", "hubs")}
    return Config.model_validate({"clusters": clusters, "flows": {made.name: made}, "storage": storage})


def info(name: str, partitions: int = 1) -> TopicInfo:
    return TopicInfo(name, "id", partitions, 1)


# --- choice ---


@pytest.mark.parametrize(
    ("topic", "taken"),
    [
        ("orders", True),
        ("orders.v2", True),
        ("my-orders", False),
        ("orders.internal", False),
        ("__consumer_offsets", False),
        ("named.internal", True),
    ],
)
def test_a_flow_takes_what_it_names_and_what_matches_but_is_not_excluded(topic: str, taken: bool) -> None:
    made = flow(topics=["named.internal"], patterns=[r"orders.*", r"__.*"])
    assert takes(made, topic) is taken


@pytest.mark.parametrize(
    ("narrowing", "taken"),
    [
        ({}, True),
        ({"topics": ["orders"]}, True),
        ({"topics": ["clicks"]}, False),
        ({"patterns": ["ord.*"]}, True),
        ({"patterns": ["ord"]}, False),
        ({"exclude": ["orders"]}, False),
        ({"topics": ["orders"], "exclude": ["o.*"]}, False),
    ],
)
def test_a_target_may_narrow_the_flow(narrowing: dict[str, list[str]], taken: bool) -> None:
    assert target_takes(target(**narrowing), "orders") is taken


# --- tables ---


def test_listed_topics_have_a_table_each() -> None:
    made = flow(topics=["orders", "Orders.v2"])
    specs = relay_specs(config(made), made)
    assert [(spec.table, spec.topics) for spec in specs] == [
        ("bronze.src__orders", ("orders",)),
        ("bronze.src____corders__dv2", ("Orders.v2",)),
    ]


def test_a_pattern_has_one_shared_table_beside_those_of_listed_topics() -> None:
    made = flow(topics=["orders"], patterns=["o.*"])
    named, family = relay_specs(config(made), made)
    assert (named.table, family.table) == ("bronze.src__orders", "bronze.f")
    assert spec_topics(family, ["orders", "other", "o", "x", "o.internal"]) == ["other", "o"]


def test_a_template_with_topic_gives_matched_topics_a_table_each() -> None:
    made = flow(patterns=["o.*"], topics=["orders"], bronze="raw.{flow}_{topic}")
    specs = relay_specs(config(made), made, ["other", "x", "orders", "o.internal"])
    assert [(spec.table, spec.topics) for spec in specs] == [
        ("raw.f_orders", ("orders",)),
        ("raw.f_other", ("other",)),
    ]


def test_a_template_without_topic_is_one_table_for_all() -> None:
    made = flow(topics=["a", "b"], bronze="raw.{source}_{flow}")
    (spec,) = relay_specs(config(made), made)
    assert (spec.table, spec.topics, spec.java_pattern) == ("raw.src_f", ("a", "b"), None)


def test_a_shared_table_of_names_and_patterns_takes_both() -> None:
    made = flow(topics=["named.internal"], patterns=["o.*"])
    (spec,) = relay_specs(config(made, bronze="raw.all"), made)
    assert spec_topics(spec, ["named.internal", "named", "other", "o.internal"]) == [
        "named.internal",
        "other",
    ]


NAMES = st.lists(st.text("abo.-_", min_size=1, max_size=6), max_size=3, unique=True)
PATTERNS = st.lists(
    st.sampled_from([".*", "a.*", "a|b.*", "o", ".*o", "[ab]+", "a.b", "^a.*$", "(a|b)o?"]),
    min_size=1,
    max_size=3,
)


@given(NAMES.filter(lambda names: not {".", ".."} & set(names)), PATTERNS, PATTERNS | st.just([]), NAMES)
def test_the_pattern_for_spark_chooses_as_the_flow_does(
    named: list[str], patterns: list[str], exclude: list[str], topics: list[str]
) -> None:
    named = [topic for topic in named if not matches_any(exclude, topic)]  # the configuration refuses those
    made = flow(topics=named, patterns=patterns, exclude=exclude)
    (shared,) = relay_specs(config(made, bronze="raw.all"), made)
    assert shared.java_pattern is not None
    for topic in {*topics, *named}:
        assert bool(re.fullmatch(shared.java_pattern, topic)) is takes(made, topic)
    specs = relay_specs(config(made), made)
    for topic in {*topics, *named}:
        homes = [spec for spec in specs if spec_topics(spec, [topic])]
        assert len(homes) == takes(made, topic)


@pytest.mark.parametrize("pattern", ["(?i)orders", r"(a)\1"], ids=["an inline flag", "a back-reference"])
def test_a_pattern_keeps_its_meaning_beside_others_or_is_refused(pattern: str) -> None:
    try:
        made = flow(patterns=["(x)y", pattern, "clicks"], exclude=["(z)"])
    except ValidationError:
        return
    (spec,) = relay_specs(config(made), made)
    topics = ["xy", "ORDERS", "orders", "aa", "clicks", "CLICKS", "z"]
    assert spec_topics(spec, topics) == [topic for topic in topics if takes(made, topic)]


def test_a_named_topic_that_is_not_there_is_said_so() -> None:
    made = flow(topics=["orders"])
    (spec,) = relay_specs(config(made), made)
    require_topics(spec, "src", {"orders": info("orders")})
    with pytest.raises(TopicMissing, match="cluster src has no topic orders"):
        require_topics(spec, "src", {})


# --- names on the target ---


def fitted(listed: list[str], **fields: Any) -> tuple[dict[str, str], dict[str, str]]:
    made = flow(patterns=[".*"], targets=[target(**fields)])
    return fit_names(config(made), made, made.targets[0], listed)


def names(listed: list[str], **fields: Any) -> dict[str, str]:
    found, refused = fitted(listed, **fields)
    assert not refused
    return found


def test_topics_are_prefixed_and_those_that_would_loop_are_left_out() -> None:
    assert names(["a", "dr.a", "hubs.dr.a", "hubs.a", "x.dr"]) == {
        "a": "src.a",
        "hubs.a": "src.hubs.a",
        "x.dr": "src.x.dr",
    }


def test_identical_names_keep_everything() -> None:
    assert names(["a", "dr.a"], naming="identity") == {"a": "a", "dr.a": "dr.a"}


def test_a_target_that_narrows_gets_only_its_part() -> None:
    assert names(["a", "b"], topics=["b"], separator="_") == {"b": "src_b"}


def test_a_name_that_is_too_long_for_kafka_is_refused() -> None:
    found, refused = fitted(["a" * 248, "b"])
    assert found == {"b": "src.b"}
    assert "252 of 249" in refused["a" * 248]


class Everything:
    """A policy that gives all topics one name."""

    def target_topic(self, source: str, topic: str) -> str:
        return "all"

    def source_of(self, topic: str) -> str | None:
        return None

    def upstream_topic(self, topic: str) -> str | None:
        return None


def test_two_topics_of_one_name_are_refused() -> None:
    found, refused = fitted(["a", "b"], naming=f"python:{__name__}:Everything")
    assert (found, refused) == ({"a": "all"}, {"b": "would be all, as a already is"})


# --- heartbeats ---

BEATING = {"heartbeats": {"enabled": True}}
BEATS = ["heartbeats", "dr.heartbeats", "hubs.heartbeats", "hubs.dr.heartbeats"]


def test_heartbeats_have_a_table_of_their_own_whatever_else_a_flow_takes() -> None:
    made = flow(topics=["orders", "heartbeats"], patterns=[".*"], **BEATING)
    known = [*BEATS, "orders", "clicks", "user.heartbeats"]
    found = {spec.table: spec_topics(spec, known) for spec in relay_specs(config(made), made)}
    assert found == {
        "bronze.src__orders": ["orders"],
        "bronze.f": ["clicks", "user.heartbeats"],
        "bronze.f__heartbeats": BEATS,
    }
    assert flow_topics(config(made), made, known) == known


def test_heartbeats_are_data_like_any_other_where_they_are_not_asked_for() -> None:
    made = flow(patterns=["heart.*"])
    assert [spec.table for spec in relay_specs(config(made), made)] == ["bronze.f"]
    assert flow_topics(config(made), made, BEATS) == ["heartbeats"]


@pytest.mark.parametrize("naming", ["default", "identity"])
def test_heartbeats_name_their_source_and_do_not_go_back(naming: str) -> None:
    made = flow(topics=["orders"], targets=[target(naming=naming, topics=["orders"])], **BEATING)
    found, refused = fit_names(config(made), made, made.targets[0], BEATS)
    assert (found, refused) == ({"heartbeats": "src.heartbeats", "hubs.heartbeats": "src.hubs.heartbeats"}, {})


@pytest.mark.parametrize(
    "topic",
    [
        "mm2-offsets.a.internal", "mm2-configs.a", "mm2-status.a", "mm2-offset-syncs.b.internal", "mm2-offset-syncs.b",
        "a.checkpoints.internal", "connect-configs", "connect-offsets", "my-connect-cluster-status",
        "_connect-offsets", "mirrormaker2-cluster-configs", "connect-cluster-offsets", "__consumer_offsets",
    ],
)  # fmt: skip
def test_control_topics_of_mm2_and_connect_are_left_out(topic: str) -> None:
    assert not takes(flow(patterns=[".*"]), topic)


@pytest.mark.parametrize("topic", ["connection-status", "orders-status", "reconnect-offsets-report", "offsets"])
def test_topics_with_names_alike_are_taken(topic: str) -> None:
    assert takes(flow(patterns=[".*"]), topic)
