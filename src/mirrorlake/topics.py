"""Which topics a flow takes, which bronze table each goes to, and what it is called on a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from mirrorlake import heartbeats
from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import TopicMissing
from mirrorlake.kafka import Cluster
from mirrorlake.names import (
    MAX_TOPIC_CHARACTERS,
    NamingPolicy,
    PrefixedNames,
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
    heartbeats: bool = False

    def describe(self) -> str:
        return ", ".join(self.topics) if self.topics else f"topics like {self.java_pattern}"


def relay_specs(config: Config, flow: Flow, known_topics: Iterable[str] = ()) -> list[RelaySpec]:
    """The flow's bronze tables. `known_topics` matter only where a template gives matched topics a table each."""
    if not flow.heartbeats.enabled:
        return _data_specs(config, flow, known_topics)
    beats = _heartbeats(config, flow)
    table = f"{_schema(config, flow)}.{escape_alias(flow.name)}__heartbeats"
    others = flow.model_copy(
        update={
            "topics": [topic for topic in flow.topics if not re.fullmatch(beats, topic)],
            "exclude": [*flow.exclude, beats],
        }
    )
    # A table of their own: their commits, every few seconds, are no concern of the data's readers.
    return [*_data_specs(config, others, known_topics), RelaySpec(flow.name, table, (), f"^{beats}$", True)]


def _heartbeats(config: Config, flow: Flow) -> str:
    return heartbeats.family(config.clusters, (target.separator for target in flow.targets))


def _schema(config: Config, flow: Flow) -> str:
    return (flow.bronze or config.storage.bronze).partition(".")[0]


def _data_specs(config: Config, flow: Flow, known_topics: Iterable[str]) -> list[RelaySpec]:
    template = flow.bronze or config.storage.bronze
    if "{topic}" not in template:
        table = template.format(source=escape_alias(flow.source), flow=escape_alias(flow.name))
        return [_shared(flow, table, flow.topics)] if flow.topics or flow.patterns else []
    specs = [RelaySpec(flow.name, _table(template, flow, topic), (topic,)) for topic in flow.topics]
    if not flow.patterns:
        return specs
    if flow.bronze or "bronze" in config.storage.model_fields_set:
        matched = sorted(t for t in known_topics if takes(flow, t) and t not in flow.topics)
        return specs + [RelaySpec(flow.name, _table(template, flow, topic), (topic,)) for topic in matched]
    table = f"{_schema(config, flow)}.{escape_alias(flow.name)}"
    return [*specs, _shared(flow, table, (), left_out=flow.topics)]


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


def flow_topics(config: Config, flow: Flow, known_topics: Iterable[str]) -> list[str]:
    """The topics among those known that the flow relays."""
    known = list(known_topics)
    specs = relay_specs(config, flow, known)
    named = {topic for spec in specs for topic in spec.topics}
    families = [spec for spec in specs if spec.java_pattern]
    return [topic for topic in known if topic in named or any(spec_topics(spec, [topic]) for spec in families)]


def topics_now(spec: RelaySpec, source: Cluster) -> list[str]:
    """The table's topics: those listed, else those that match now."""
    return list(spec.topics) or spec_topics(spec, source.topic_names())


def require_topics(spec: RelaySpec, alias: str, existing: Collection[str]) -> None:
    missing = [topic for topic in spec.topics if topic not in existing]
    if missing:
        raise TopicMissing(
            f"flow {spec.flow}: cluster {alias} has no topic {', '.join(missing)}",
            "create it, mend the name, or take it out of the flow's topics",
        )


# --- names on the target ---


def policy_of(target: Target) -> NamingPolicy:
    return naming_policy(target.naming, target.separator)


def prefix_renamer(target: Target, source: str) -> Callable[[str], str] | None:
    """What becomes of the beginning of a name; None where only the policy's author can tell."""
    if target.naming not in ("default", "identity"):
        return None
    return partial(policy_of(target).target_topic, source)


def fit_names(
    config: Config, flow: Flow, target: Target, topics: Iterable[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Source topic -> target topic, and source topic -> why it cannot have the name it should have."""
    aliases, beats = frozenset(config.clusters), _heartbeats(config, flow) if flow.heartbeats.enabled else ""
    names: dict[str, str] = {}
    refused: dict[str, str] = {}
    seen: dict[str, str] = {}
    for topic in topics:
        beat = bool(beats and re.fullmatch(beats, topic))
        # Heartbeats name their source in any case, as in MM2: that is what they are for.
        policy = PrefixedNames(target.separator) if beat else policy_of(target)
        if (beat or target_takes(target, topic)) and not is_cycle(policy, topic, target.cluster, aliases):
            name = policy.target_topic(flow.source, topic)
            reason = _bad_name(name, seen)
            (refused if reason else names)[topic] = reason or name
            seen.setdefault(name, topic)
    return names, refused


def name_on(config: Config, flow: Flow, target: Target, topic: str) -> str | None:
    """What a source topic is called on a target; None where the target does not take it."""
    return fit_names(config, flow, target, [topic])[0].get(topic)


def _bad_name(name: str, seen: Mapping[str, str]) -> str:
    if not is_legal_topic(name):
        size = f"{len(name)} of {MAX_TOPIC_CHARACTERS} characters"
        return f"would be {name}, which Kafka does not allow ({size})"
    return f"would be {name}, as {seen[name]} already is" if name in seen else ""
