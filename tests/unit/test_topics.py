"""Which topics a flow takes, where they go, and what a target must have."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mirrorlake.config import Cluster, Config, Flow, Target
from mirrorlake.errors import TopicMissing, UsageFault
from mirrorlake.kafka import TopicInfo
from mirrorlake.topics import (
    TopicPlan,
    apply_plan,
    matches_any,
    plan_topics,
    relay_specs,
    require_topics,
    spec_topics,
    takes,
    target_names,
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


def names(listed: list[str], **fields: Any) -> dict[str, str]:
    made = flow(patterns=[".*"], targets=[target(**fields)])
    return target_names(config(made), made, made.targets[0], listed)


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
    with pytest.raises(UsageFault, match="252 of 249"):
        names(["a" * 248])


class Everything:
    """A policy that gives all topics one name."""

    def target_topic(self, source: str, topic: str) -> str:
        return "all"

    def source_of(self, topic: str) -> str | None:
        return None

    def upstream_topic(self, topic: str) -> str | None:
        return None


def test_two_topics_of_one_name_are_refused() -> None:
    with pytest.raises(UsageFault, match="topic b would be all, as a already is"):
        names(["a", "b"], naming=f"python:{__name__}:Everything")


# --- what a target must have ---

WANTED = {"a": "src.a", "b": "src.b", "c": "src.c"}
SOURCES = {"a": info("a", 3), "b": info("b", 3), "c": info("c", 3)}
EXISTING = {"src.b": info("src.b", 2), "src.c": info("src.c", 6)}


def test_missing_topics_are_made_short_ones_grow_and_larger_ones_stay() -> None:
    plan = plan_topics(target(), WANTED, SOURCES, EXISTING, can_create=True)
    assert plan == TopicPlan("dr", {"src.a": 3}, {"src.b": 3}, {})


@pytest.mark.parametrize(("create_topics", "can_create"), [(False, True), (True, False)])
def test_where_nothing_may_be_made_it_is_listed(create_topics: bool, can_create: bool) -> None:
    plan = plan_topics(target(create_topics=create_topics), WANTED, SOURCES, EXISTING, can_create)
    assert (plan.creates, plan.grows, set(plan.refusals)) == ({}, {}, {"src.a", "src.b"})
    with pytest.raises(TopicMissing, match=r"topic src\.[ab] needs 3 partitions"):
        apply_plan(NotedCluster(), target(), plan)  # type: ignore[arg-type]


def test_a_source_topic_that_is_gone_needs_nothing() -> None:
    assert plan_topics(target(), WANTED, {}, {}, True) == TopicPlan("dr", {}, {}, {})


class NotedCluster:
    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def create_topic(self, *asked: Any) -> None:
        self.done.append(("create", *asked[:3]))

    def grow_topic(self, *asked: Any) -> None:
        self.done.append(("grow", *asked))


def test_a_plan_is_carried_out_as_it_says() -> None:
    cluster = NotedCluster()
    plan = TopicPlan("dr", {"src.a": 3}, {"src.b": 4}, {})
    apply_plan(cluster, target(replication_factor=2), plan)  # type: ignore[arg-type]
    assert cluster.done == [("create", "src.a", 3, 2), ("grow", "src.b", 4)]
