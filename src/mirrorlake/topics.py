"""Which topics a flow takes, which bronze table each goes to, and what its targets must have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import TopicMissing, UsageFault
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.names import (
    MAX_TOPIC_CHARACTERS,
    NamingPolicy,
    escape_alias,
    is_cycle,
    is_legal_topic,
    naming_policy,
    table_name,
)


def matches_any(patterns: Iterable[str], topic: str) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)


def takes(flow: Flow, topic: str) -> bool:
    """Does the flow relay this topic? Exclusions win."""
    if topic in flow.topics:
        return True
    return matches_any(flow.patterns, topic) and not matches_any(flow.exclude, topic)


def target_takes(target: Target, topic: str) -> bool:
    """A target may narrow what the flow takes."""
    chosen = not (target.topics or target.patterns)
    chosen = chosen or topic in target.topics or matches_any(target.patterns, topic)
    return chosen and not matches_any(target.exclude, topic)


# --- bronze tables ---


@dataclass(frozen=True)
class RelaySpec:
    """One bronze table of a flow and the topics that it takes: named ones, or a family by pattern."""

    flow: str
    table: str
    topics: tuple[str, ...] = ()
    java_pattern: str | None = None

    def describe(self) -> str:
        return ", ".join(self.topics) if self.topics else f"topics like {self.java_pattern}"


def relay_specs(config: Config, flow: Flow, known_topics: Iterable[str] = ()) -> list[RelaySpec]:
    """The flow's bronze tables. `known_topics` matter only where a template gives matched topics a table each."""
    template = flow.bronze or config.storage.bronze
    if "{topic}" not in template:
        table = template.format(source=escape_alias(flow.source), flow=escape_alias(flow.name))
        return [_shared(flow, table, flow.topics)]
    specs = [RelaySpec(flow.name, _table(template, flow, topic), (topic,)) for topic in flow.topics]
    if not flow.patterns:
        return specs
    if flow.bronze or "bronze" in config.storage.model_fields_set:
        matched = sorted(t for t in known_topics if takes(flow, t) and t not in flow.topics)
        return specs + [RelaySpec(flow.name, _table(template, flow, topic), (topic,)) for topic in matched]
    schema = template.partition(".")[0]
    return [*specs, _shared(flow, f"{schema}.{escape_alias(flow.name)}", (), left_out=flow.topics)]


def _table(template: str, flow: Flow, topic: str) -> str:
    return table_name(template.replace("{flow}", escape_alias(flow.name)), flow.source, topic)


def _shared(flow: Flow, table: str, named: Iterable[str], left_out: Iterable[str] = ()) -> RelaySpec:
    listed = tuple(named)
    if not flow.patterns:
        return RelaySpec(flow.name, table, listed)
    return RelaySpec(flow.name, table, (), _java_pattern(flow, listed, left_out))


def _java_pattern(flow: Flow, named: Iterable[str], left_out: Iterable[str]) -> str:
    """One expression for Spark's subscribePattern: the named, or the matching without the excluded."""
    excluded = _either([*flow.exclude, *(re.escape(topic) for topic in left_out)])
    matching = _either(flow.patterns)
    chosen = f"(?!(?:{excluded})$)(?:{matching})" if excluded else f"(?:{matching})"
    exact = "".join(f"{re.escape(topic)}|" for topic in named)
    return f"^(?:{exact}{chosen})$"


def _either(patterns: Iterable[str]) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def spec_topics(spec: RelaySpec, topics: Iterable[str]) -> list[str]:
    """The topics among those given that go to this table."""
    if spec.java_pattern is None:
        return [topic for topic in topics if topic in spec.topics]
    return [topic for topic in topics if re.fullmatch(spec.java_pattern, topic)]


def require_topics(spec: RelaySpec, alias: str, existing: Mapping[str, TopicInfo]) -> None:
    missing = [topic for topic in spec.topics if topic not in existing]
    if missing:
        raise TopicMissing(
            f"flow {spec.flow}: cluster {alias} has no topic {', '.join(missing)}",
            "create it, mend the name, or take it out of the flow's topics",
        )


# --- what a target must have ---


@dataclass(frozen=True)
class TopicPlan:
    """What a target needs before records can go to it."""

    target: str
    creates: Mapping[str, int] = field(default_factory=dict)
    grows: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)


def policy_of(target: Target) -> NamingPolicy:
    return naming_policy(target.naming, target.separator)


def target_names(config: Config, flow: Flow, target: Target, topics: Iterable[str]) -> dict[str, str]:
    """Source topic -> target topic, without those that would loop; refuses names that collide or are illegal."""
    policy, aliases = policy_of(target), frozenset(config.clusters)
    names = {
        topic: policy.target_topic(flow.source, topic)
        for topic in topics
        if target_takes(target, topic) and not is_cycle(policy, topic, target.cluster, aliases)
    }
    _refuse_bad_names(flow, target, names)
    return names


def _refuse_bad_names(flow: Flow, target: Target, names: Mapping[str, str]) -> None:
    seen: dict[str, str] = {}
    for topic, name in names.items():
        where = f"flow {flow.name}, target {target.cluster}: topic {topic} would be {name}"
        if not is_legal_topic(name):
            raise UsageFault(
                f"{where}, which Kafka does not allow ({len(name)} of {MAX_TOPIC_CHARACTERS} characters)",
                "choose another naming or separator, or exclude the topic",
            )
        if name in seen:
            raise UsageFault(f"{where}, as {seen[name]} already is", "choose another naming policy")
        seen[name] = topic


def plan_topics(
    target: Target,
    names: Mapping[str, str],
    source: Mapping[str, TopicInfo],
    existing: Mapping[str, TopicInfo],
    can_create: bool,
) -> TopicPlan:
    """The difference between what the target has and what it needs. Changes nothing."""
    wanted = {name: source[topic].partitions for topic, name in names.items() if topic in source}
    missing = {name: count for name, count in wanted.items() if name not in existing}
    short = {name: count for name, count in wanted.items() if name in existing and existing[name].partitions < count}
    may = target.create_topics and can_create
    why = "may not be made here (create_topics, or the kind of cluster)"
    refusals = {} if may else {name: f"needs {count} partitions and {why}" for name, count in (missing | short).items()}
    return TopicPlan(target.cluster, missing if may else {}, short if may else {}, refusals)


def apply_plan(cluster: Cluster, target: Target, plan: TopicPlan) -> None:
    for name, reason in plan.refusals.items():
        raise TopicMissing(
            f"cluster {plan.target}: topic {name} {reason}",
            f"create it: kafka-topics --create --topic {name} …; `mirrorlake plan` lists all that is missing",
        )
    for name, partitions in plan.creates.items():
        cluster.create_topic(name, partitions, target.replication_factor, {})
    for name, partitions in plan.grows.items():
        cluster.grow_topic(name, partitions)
