"""What a target needs, planned from what both sides say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirrorlake.acls import AclChanges
from mirrorlake.config import Target
from mirrorlake.errors import AccessRefused, ClusterUnreachable, TopicMissing, UsageFault
from mirrorlake.kafka import Acl, NewTopicSpec, TopicInfo, TopicSetting
from mirrorlake.services import LIMITS
from mirrorlake.targets import Look, Looker, Side, TargetPlan, Wish, bring_in_step, make_topics, plan_target

NAMES = {"a": "src.a", "b": "src.b", "c": "src.c"}


def info(name: str, partitions: int = 1) -> TopicInfo:
    return TopicInfo(name, "id", partitions, 1)


SOURCE = {name: info(name, 3) for name in NAMES}
EXISTING = {"src.b": info("src.b", 2), "src.c": info("src.c", 6)}
LOOK = Look(Side(SOURCE), Side(EXISTING))
KAFKA, HUBS = LIMITS["kafka", None], LIMITS["event_hubs", None]


def target(**fields: Any) -> Target:
    return Target.model_validate({"cluster": "dr", **fields})


def wish(**fields: Any) -> Wish:
    return replace(Wish(target(), KAFKA, "src", NAMES), **fields)


# --- planning ---


def test_missing_topics_are_made_short_ones_grow_and_larger_ones_stay() -> None:
    assert plan_target(wish(), LOOK) == TargetPlan("dr", {"src.a": 3}, {"src.b": 3})


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(wish(target=target(create_topics=False)), id="by configuration"),
        pytest.param(wish(limits=HUBS), id="by the kind of cluster"),
    ],
)
def test_where_nothing_may_be_made_it_is_listed(asked: Wish) -> None:
    plan = plan_target(asked, LOOK)
    assert (plan.creates, plan.grows, set(plan.refusals)) == ({}, {}, {"src.a", "src.b"})
    with pytest.raises(TopicMissing, match=r"topic src\.[ab] needs 3 partitions"):
        make_topics(NotedCluster(), target(), plan)  # type: ignore[arg-type]


def test_fewer_partitions_are_folded_where_asked_for_and_refused_otherwise() -> None:
    folding = target(partitions="modulo")
    plan = plan_target(wish(target=folding), LOOK)
    assert (plan.creates, plan.grows, plan.folds, plan.refusals) == ({"src.a": 3}, {}, {"src.b": 2}, {})
    few = replace(KAFKA, max_partitions=2)
    assert plan_target(wish(target=folding, limits=few), LOOK).creates == {"src.a": 2}
    assert set(plan_target(wish(limits=few), LOOK).refusals) == {"src.a", "src.b"}, "2 at most"
    fixed = replace(KAFKA, can_add_partitions=False)
    assert "partitions: modulo" in plan_target(wish(limits=fixed), LOOK).refusals["src.b"]
    assert plan_target(wish(target=folding, limits=HUBS), LOOK).refusals.keys() == {"src.a"}, "it cannot be made there"


def test_a_source_topic_that_is_gone_needs_nothing() -> None:
    assert plan_target(wish(), Look(Side(), Side())) == TargetPlan("dr")


def test_a_name_that_cannot_be_stops_before_anything_is_made() -> None:
    plan = plan_target(wish(misnamed={"x": "would be src.b, as b already is"}), LOOK)
    cluster = NotedCluster()
    with pytest.raises(UsageFault, match="topic x would be src"):
        make_topics(cluster, target(), plan)  # type: ignore[arg-type]
    assert cluster.done == []
    assert plan.to_json()["refusals"] == {"x": "would be src.b, as b already is"}


COMPACT = {"cleanup.policy": TopicSetting("compact"), "retention.ms": TopicSetting("7", "default")}


def test_new_topics_begin_as_on_the_source_and_others_change_where_looked_at() -> None:
    source = Side(SOURCE, dict.fromkeys(NAMES, COMPACT))
    there = {"src.b": {"retention.ms": TopicSetting("1"), "cleanup.policy": TopicSetting("delete", "default")}}
    plan = plan_target(wish(), Look(source, Side(EXISTING, there)))
    assert plan.alters == {
        "src.a": {"cleanup.policy": "compact"},
        "src.b": {"cleanup.policy": "compact", "retention.ms": None},
    }, "src.c was not looked at"
    assert plan.wanted["src.c"] == {"cleanup.policy": "compact", "retention.ms": None}


def test_a_refused_topic_is_not_altered() -> None:
    plan = plan_target(wish(limits=HUBS), Look(Side(SOURCE, {"a": COMPACT}), Side(EXISTING)))
    assert plan.alters == {}


ACL = Acl("topic", "a", "User:ann", "read")


@pytest.mark.parametrize(
    ("source", "there", "given"),
    [([ACL], [], 1), ([ACL], [replace(ACL, name="src.a")], 0), (None, [], 0), ([ACL], None, 0)],
)
def test_acls_are_planned_where_both_sides_were_asked(source: Any, there: Any, given: int) -> None:
    plan = plan_target(wish(), Look(Side(SOURCE, acls=source), Side(EXISTING, acls=there)))
    assert len(plan.acls.give) == given


def test_a_plan_says_in_words_what_it_would_do() -> None:
    acls = AclChanges((replace(ACL, name="src.a"),), (replace(ACL, name="src.b"),))
    alters = {"src.a": {"cleanup.policy": "compact"}, "src.c": {"retention.ms": None}}
    plan = TargetPlan("dr", {"src.a": 3}, {"src.b": 4}, {"src.c": 2}, alters, acls)
    assert list(plan.lines()) == [
        "create topic src.a with 3 partitions: cleanup.policy=compact",
        "grow topic src.b to 4 partitions",
        "topic src.c keeps 2 partitions: a record goes to its partition modulo 2",
        "alter topic src.c: retention.ms=(default)",
        "give ACL: allow User:ann read on topic src.a",
        "take away ACL: allow User:ann read on topic src.b",
    ]


# --- carrying out ---


class NotedCluster:
    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def create_topics(self, topics: Any) -> None:
        self.done += [("create", topic) for topic in topics]

    def grow_topics(self, partitions: Any) -> None:
        self.done += [("grow", *item) for item in partitions.items()]

    def alter_configs(self, changes: Any) -> dict[str, Exception]:
        self.done += [("alter", *item) for item in changes.items()]
        return {"src.c": AccessRefused("no")}

    def create_acls(self, acls: Any) -> dict[str, Exception]:
        self.done += [("give", acl) for acl in acls]
        return {}

    def delete_acls(self, acls: Any) -> dict[str, Exception]:
        self.done += [("take", acl) for acl in acls]
        return {}


def test_a_plan_is_carried_out_as_it_says() -> None:
    alters = {"src.a": {"cleanup.policy": "compact", "x": None}, "src.c": {"retention.ms": None}}
    plan = TargetPlan("dr", {"src.a": 3}, {"src.b": 4}, {}, alters, AclChanges((ACL,), (ACL,)))
    cluster = NotedCluster()
    make_topics(cluster, target(replication_factor=2), plan)  # type: ignore[arg-type]
    failed = bring_in_step(cluster, plan)  # type: ignore[arg-type]
    assert cluster.done == [
        ("create", NewTopicSpec("src.a", 3, 2, {"cleanup.policy": "compact"})),
        ("grow", "src.b", 4),
        ("give", ACL),
        ("take", ACL),
        ("alter", "src.c", {"retention.ms": None}),
    ]
    assert list(failed.configs) == ["src.c"]


# --- looking ---


class TellingCluster:
    """Answers from lists, or refuses."""

    def __init__(self, topics: dict[str, TopicInfo], acls: Any = (), refuses: Exception | None = None) -> None:
        self.topics, self.refuses, self._acls, self.asked = topics, refuses, acls, list[str]()

    def describe(self, names: Any) -> dict[str, TopicInfo]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def topic_configs(self, names: Any) -> dict[str, Any]:
        self.asked += names
        if self.refuses and names:
            raise self.refuses
        return dict.fromkeys(names, COMPACT)

    def acls(self) -> Any:
        if self.refuses:
            raise self.refuses
        return self._acls


def looked(source: TellingCluster, there: TellingCluster, asked: Wish | None = None, **parts: bool) -> Look:
    return Looker(source, there, asked or wish())(SOURCE, **parts)  # type: ignore[arg-type]


def test_a_look_at_topics_asks_for_the_configuration_of_new_ones_only() -> None:
    source, there = TellingCluster(SOURCE), TellingCluster(EXISTING)
    look = looked(source, there)
    assert (source.asked, there.asked, look.target.acls) == (["a"], [], None)


def test_what_is_switched_off_is_not_looked_at() -> None:
    source, there = TellingCluster(SOURCE, [ACL]), TellingCluster(EXISTING)
    off = wish(target=target(configs={"enabled": False}, acls={"enabled": False}))
    look = looked(source, there, off, configs=True, acls=True)
    assert (source.asked, there.asked, look.source.acls) == (["a"], [], None)


def test_a_refusal_is_written_down_and_the_rest_goes_on() -> None:
    source = TellingCluster(SOURCE, refuses=AccessRefused("not for you"))
    look = looked(source, TellingCluster(EXISTING), configs=True, acls=True)
    assert look.declined == {"configurations of the source": "not for you", "ACLs of the source": "not for you"}
    assert plan_target(wish(), look).creates == {"src.a": 3}


def test_what_passes_by_itself_is_no_refusal() -> None:
    with pytest.raises(ClusterUnreachable):
        looked(TellingCluster(SOURCE, refuses=ClusterUnreachable("away")), TellingCluster(EXISTING), configs=True)


def test_a_target_without_configuration_or_authorizer_says_so() -> None:
    look = looked(
        TellingCluster(SOURCE, [ACL]), TellingCluster(EXISTING, None), wish(limits=HUBS), configs=True, acls=True
    )
    assert set(look.declined) == {"configurations", "ACLs"}


def test_a_source_without_authorizer_is_nothing_to_talk_about() -> None:
    assert looked(TellingCluster(SOURCE, None), TellingCluster(EXISTING, None), acls=True).declined == {}
