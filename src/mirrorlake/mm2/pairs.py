"""The pairs `A->B` that are switched on, and what is set for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.clusters import CODECS
from mirrorlake.config import Flow, Key, Target, dotted
from mirrorlake.mm2.draft import Setting
from mirrorlake.mm2.reader import Reader, split_key, typed
from mirrorlake.mm2.topics import Choice, choose, listed, plain_name, without_repeats
from mirrorlake.mm2keys import COMMON_TUNING, PRODUCER_TUNING, Fate, Tuned

POLICIES = {
    "org.apache.kafka.connect.mirror.DefaultReplicationPolicy": "default",
    "org.apache.kafka.connect.mirror.IdentityReplicationPolicy": "identity",
    "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy": "identity",
}
FILTERS = {
    "topic.filter.class": ("org.apache.kafka.connect.mirror.DefaultTopicFilter", "topics and topics.exclude"),
    "config.property.filter.class": (
        "org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter",
        "config.properties.exclude and use.defaults.from",
    ),
    "group.filter.class": ("org.apache.kafka.connect.mirror.DefaultGroupFilter", "groups and groups.exclude"),
}
FLOW_FIELDS = set(Flow.model_fields) - {"name", "source", "topics", "patterns", "exclude", "targets"}
TARGET_FIELDS = set(Target.model_fields) - {"cluster", "topics", "patterns", "exclude"}
# MM2's keys that a target has too: the newest name first, ours, and how the value is written.
SYNC_KEYS: tuple[tuple[tuple[str, ...], Key, str], ...] = (
    (("sync.topic.configs.enabled",), ("configs", "enabled"), "flag"),
    (("sync.topic.configs.interval.seconds",), ("configs", "every_seconds"), "value"),
    (("config.properties.exclude", "config.properties.blacklist"), ("configs", "exclude"), "list"),
    (("use.defaults.from",), ("configs", "use_defaults_from"), "value"),
    (("sync.topic.acls.enabled",), ("acls", "enabled"), "flag"),
    (("sync.topic.acls.interval.seconds",), ("acls", "every_seconds"), "value"),
    (("groups",), ("groups", "include"), "list"),
    (("groups.exclude", "groups.blacklist"), ("groups", "exclude"), "list"),
    (("emit.checkpoints.enabled",), ("groups", "checkpoints"), "flag"),
    (("emit.checkpoints.interval.seconds",), ("groups", "checkpoint_seconds"), "value"),
    (("sync.group.offsets.enabled",), ("groups", "sync"), "flag"),
    (("sync.group.offsets.interval.seconds",), ("groups", "sync_seconds"), "value"),
)
FLOW_KEYS: tuple[tuple[tuple[str, ...], Key, str], ...] = (
    (("emit.heartbeats.enabled",), ("heartbeats", "enabled"), "flag"),
    (("emit.heartbeats.interval.seconds",), ("heartbeats", "every_seconds"), "value"),
    (("heartbeats.topic.replication.factor",), ("heartbeats", "replication_factor"), "value"),
)
Values = dict[Key, tuple[Any, Setting]]


@dataclass
class Pair:
    """One enabled A->B and what was set for it."""

    source: str
    target: str
    choice: Choice
    topic_settings: tuple[Setting, ...]
    exclude_setting: Setting | None
    flow: Values = field(default_factory=dict)  # below flows.NAME
    aim: Values = field(default_factory=dict)  # below flows.NAME.targets[N]
    producer: Values = field(default_factory=dict)  # librdkafka options for the target
    flow_name: str = ""

    @property
    def prefix(self) -> str:
        return f"{self.source}->{self.target}."

    def agreement(self) -> str:
        """Pairs of one source that have this in common can share a flow."""
        return json.dumps([self.source, self.flow_name, sorted((dotted(k), str(v)) for k, (v, _) in self.flow.items())])


class PairReader(Reader):
    """The aliases, and the pairs between them."""

    def __init__(self, settings: Sequence[Setting], where: str, secrets_dir: str = "") -> None:
        super().__init__(settings, where, secrets_dir)
        self.aliases = self._aliases()
        self.pairs = [pair for pair in map(self._pair, *self._enabled()) if pair] if self.aliases else []

    def _aliases(self) -> list[str]:
        named = self.settings.first("clusters")
        aliases = list(without_repeats(listed(self.plain(named)))) if named else []
        if not aliases:
            place = named or Setting("clusters", "", 1)
            self.fault_once(place, "is missing: name the clusters, such as clusters = primary, backup")
        return aliases

    def _enabled(self) -> tuple[list[str], list[str]]:
        """Sources and targets of all pairs that are switched on, one by one."""
        pairs = [(a, b) for a in self.aliases for b in self.aliases if a != b and self._is_enabled(a, b)]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def _is_enabled(self, source: str, target: str) -> bool:
        setting = self.settings.first(f"{source}->{target}.enabled", "enabled")
        return setting is not None and self.flag(setting)

    def _pair(self, source: str, target: str) -> Pair | None:
        topics = self.of_pair(source, target, "topics")
        exclude = self.of_pair(source, target, "topics.exclude", "topics.blacklist")
        separator = self.of_pair(source, target, "replication.policy.separator")
        wanted = self.plain(topics) if topics else ".*"
        excluded = self.plain(exclude) if exclude else None
        choice = choose(wanted, excluded, self.plain(separator) if separator else ".")
        enabled = self.settings.first(f"{source}->{target}.enabled", "enabled")
        if topics and not self._takes_something(topics, wanted, choice):
            return None
        origins = tuple(each for each in (enabled, topics) if each)
        pair = Pair(source, target, choice, origins, exclude)
        self._aim(pair)
        self._consumer(pair)
        self._overrides(pair)
        self._own_words(pair)
        return pair

    def _takes_something(self, topics: Setting, wanted: str, choice: Choice) -> bool:
        if broken := [entry for entry in listed(wanted) if re.search(r"\{[0-9]*$", entry)]:
            self.fault_once(topics, f"{broken[0]!r} is cut at a comma: MM2 ends an expression there; write it without")
        left_out = {name for name in map(plain_name, listed(wanted)) if name} - set(choice.topics)
        if left_out:
            names = ", ".join(sorted(left_out))
            self.draft.note(topics, Fate.NOT_NEEDED, f"topics.exclude leaves out {names}, which wins in MM2 too", True)
        for name in choice.topics:
            if "." in name and name in listed(wanted):
                self.draft.note(topics, Fate.TAKEN, f"the topic {name}, with its dots as dots; see `patterns`")
        if not choice.topics and not choice.patterns:
            self.draft.note(topics, Fate.NOT_NEEDED, "it names no topic: the pair relays nothing", True)
            self.seen.add(topics.key)
        return bool(choice.topics or choice.patterns)

    def _aim(self, pair: Pair) -> None:
        """What is set for the target of a pair."""
        self._naming(pair)
        self._filters(pair)
        if factor := self.of_pair(pair.source, pair.target, "replication.factor"):
            pair.aim["replication_factor",] = (typed(self.plain(factor)), factor)
        for keys, values in ((SYNC_KEYS, pair.aim), (FLOW_KEYS, pair.flow)):
            for names, key, kind in keys:
                if setting := self.of_pair(pair.source, pair.target, *names):
                    values[key] = (self._written(setting, kind), setting)
        tolerance = self.of_pair(pair.source, pair.target, "errors.tolerance")
        if tolerance and self.plain(tolerance).strip().lower() == "all":
            pair.flow["on_undeliverable",] = ("dead_letter", tolerance)

    def _written(self, setting: Setting, kind: str) -> Any:
        text = self.plain(setting).strip()
        return self.flag(setting) if kind == "flag" else listed(text) if kind == "list" else typed(text)

    def _naming(self, pair: Pair) -> None:
        policy = self.of_pair(pair.source, pair.target, "replication.policy.class")
        naming = POLICIES.get(self.plain(policy).strip()) if policy else "default"
        if policy and naming:
            pair.aim["naming",] = (naming, policy)
        elif policy and not self.of_pair(pair.source, pair.target, "mirrorlake.naming"):
            advice = "write it in Python and add mirrorlake.naming=python:package.module:Class"
            self.fault_once(policy, f"a policy that Kafka does not bring cannot run here: {advice}")
        separator = self.of_pair(pair.source, pair.target, "replication.policy.separator")
        if separator and naming != "identity":
            pair.aim["separator",] = (self.plain(separator), separator)

    def _filters(self, pair: Pair) -> None:
        for key, (known, keys) in FILTERS.items():
            chosen = self.of_pair(pair.source, pair.target, key)
            if chosen and self.plain(chosen).strip() != known:
                self.fault_once(chosen, f"a filter of your own cannot run here: say it with {keys}")
            elif chosen:
                self.say(chosen, Fate.NOT_NEEDED, f"it is what {keys} mean anyway")

    def _consumer(self, pair: Pair) -> None:
        """Where reading begins and what it sees, as MM2 layers the settings of its consumer."""
        fields = {"auto.offset.reset": "start", "isolation.level": "isolation"}
        for key, name in fields.items():
            here, there = pair.prefix, f"{pair.source}."
            setting = self.settings.first(
                f"{here}source.consumer.{key}", f"{there}consumer.{key}", f"{here}consumer.{key}"
            )
            value = self.plain(setting).strip().lower() if setting else ""
            if setting and value == "none":
                self.say(setting, Fate.NOT_NEEDED, "an offset out of range always stops the flow")
            elif setting:
                pair.flow[name,] = (value, setting)

    def _overrides(self, pair: Pair) -> None:
        found = list(self.settings.below(f"{pair.prefix}producer.override."))
        found += [
            (key, each)
            for key, each in self.settings.below(f"{pair.target}.producer.")
            if key == "delivery.timeout.ms" and pair.prefix + "producer.override." + key not in self.settings.by_key
        ]
        for key, setting in found:
            if key == "delivery.timeout.ms":
                self._delivery_timeout(pair, setting)
            elif tuned := self.tuned(key, setting, {**COMMON_TUNING, **PRODUCER_TUNING}):
                pair.producer[tuned[0],] = (tuned[1], setting)

    def _delivery_timeout(self, pair: Pair, setting: Setting) -> None:
        text = self.plain(setting).strip()
        if text.isdecimal() and 1000 <= int(text) <= 86400000:
            pair.flow["fanout", "delivery_timeout_seconds"] = (int(text) // 1000, setting)
        else:
            self.say(setting, Fate.NOT_NEEDED, "that long means for ever; fanout.delivery_timeout_seconds recovers")

    def tuned(self, key: str, setting: Setting, table: Mapping[str, Tuned]) -> tuple[str, str] | None:
        """librdkafka's name and value of an option that it has too."""
        text = self.plain(setting).strip()
        if key == "compression.type":
            if text.lower() not in CODECS:
                self.fault_once(setting, f"must be one of {', '.join(CODECS)}")
            return key, text.lower()
        if key == "client.dns.lookup" and "default" not in text:
            return key, text
        if key not in table:
            return None
        tuned = table[key]
        number = int(text) // tuned.divide if re.fullmatch(r"[0-9]{1,15}", text) else -1
        if tuned.low <= number <= tuned.high:
            return tuned.name, str(number)
        span = f"{tuned.low} to {tuned.high}"
        self.say(setting, Fate.UNSUPPORTED, f"{tuned.name} goes from {span}: the default is used")
        return None

    def _own_words(self, pair: Pair) -> None:
        """`mirrorlake.x` and `A->B.mirrorlake.x`: fields of the flow and of the target."""
        for prefix in ("mirrorlake.", f"{pair.prefix}mirrorlake."):
            for dots, setting in self.settings.below(prefix):
                key = split_key(dots)
                if key[0] in TARGET_FIELDS:
                    pair.aim[key] = (typed(self.plain(setting)), setting)
                elif key[0] in FLOW_FIELDS:
                    pair.flow[key] = (typed(self.plain(setting)), setting)
                elif dots == "flow":
                    pair.flow_name = self.plain(setting).strip()
                    self.say(setting, Fate.TAKEN, f"the flow's name, flows.{pair.flow_name}")
