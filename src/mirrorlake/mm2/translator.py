"""Settings to a draft: clusters, then flows, then a note on what is left."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlake.config import DEFAULT_EXCLUDES, Key
from mirrorlake.mm2.connection import Connection
from mirrorlake.mm2.draft import Draft, Setting
from mirrorlake.mm2.pairs import Pair, PairReader
from mirrorlake.mm2.reader import settings_of, split_key, typed
from mirrorlake.mm2.remaining import Remaining
from mirrorlake.mm2.topics import Choice, without_repeats
from mirrorlake.mm2keys import BYTES, COMMON_TUNING, PRODUCER_TUNING


class Translator(PairReader):
    """Settings to a draft, in the order in which a reader of the result meets it."""

    def __init__(self, settings: Sequence[Setting], where: str, secrets_dir: str = "") -> None:
        super().__init__(settings, where, secrets_dir)
        self.remaining = Remaining(self)

    def __call__(self) -> Draft:
        self._ours("mirrorlake.", (), {"storage", "runner"})
        for alias in self.aliases:
            self._cluster(alias)
        self._producers()
        for name, pairs in self._flows().items():
            self._flow(name, pairs)
        self._refresh()
        self._refuse_code()
        if self.aliases and not self.pairs and not self.draft.faults:
            clusters = self.settings.by_key["clusters"]
            self.draft.fault(clusters, "no pair is enabled: write A->B.enabled=true for each flow")
        self.remaining.write()
        return self.draft

    def _ours(self, prefix: str, below: Key, heads: set[str]) -> None:
        for dots, setting in self.settings.below(prefix):
            key = split_key(dots)
            if key[0] in heads:
                secret = key[-1] in ("password", "key_password", "username")
                value = self.secret(setting) if secret else typed(self.plain(setting))
                self.draft.put((*below, *key), value, setting)

    def _cluster(self, alias: str) -> None:
        Connection(self, alias).write()
        for option, setting in self.settings.below(f"{alias}."):
            role, _, rest = option.partition(".")
            table = {**COMMON_TUNING, **(PRODUCER_TUNING if role == "producer" else {})}
            if role in ("producer", "consumer") and rest != "auto.offset.reset":
                found = self.tuned(rest, setting, table) if rest in table or _by_word(role, rest) else None
                place: Key = ("clusters", alias, role)
            else:
                found = self.tuned(option, setting, COMMON_TUNING) if option in (*COMMON_TUNING, DNS) else None
                place = ("clusters", alias, "client")
            if found:
                self.draft.put((*place, found[0]), found[1], setting)
        heads = {"kind", "bootstrap_servers", "security", "client", "producer", "consumer"}
        self._ours(f"{alias}.mirrorlake.", ("clusters", alias), heads | {"allow_insecure", "allow_literal_secrets"})

    def _producers(self) -> None:
        """Overrides go to the cluster where all pairs that write to it agree, else to their flows."""
        for alias in self.aliases:
            pairs = [pair for pair in self.pairs if pair.target == alias]
            wanted = [{key: value for key, (value, _) in pair.producer.items()} for pair in pairs]
            for pair in pairs:
                for key, (value, setting) in pair.producer.items():
                    if all(each == wanted[0] for each in wanted):
                        self.draft.put(("clusters", alias, "producer", *key), value, setting)
                    else:
                        place: Key = ("fanout", "producer", *key)
                        pair.flow[place] = (value, setting)

    def _flows(self) -> dict[str, list[Pair]]:
        """Pairs of one source as one flow, as far as they agree."""
        groups: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            groups.setdefault(pair.agreement(), []).append(pair)
        flows: dict[str, list[Pair]] = {}
        for pairs in groups.values():
            name = pairs[0].flow_name or pairs[0].source
            if name in flows and pairs[0].flow_name:
                what = f"{pairs[0].prefix[:-1]} cannot join the flow {name}: it has another source or reads otherwise"
                self.draft.fault(pairs[0].topic_settings[0], what)
            flows[name if name not in flows else f"{pairs[0].source}-to-{pairs[0].target}"] = pairs
        return flows

    def _flow(self, name: str, pairs: list[Pair]) -> None:
        here: Key = ("flows", name)
        first = pairs[0]
        put = self.draft.put
        put((*here, "source"), first.source, *first.topic_settings[:1])
        topics = without_repeats(topic for pair in pairs for topic in pair.choice.topics)
        patterns = without_repeats(pattern for pair in pairs for pattern in pair.choice.patterns)
        common = [each for each in first.choice.exclude if all(each in pair.choice.exclude for pair in pairs)]
        for field_name, values in (("topics", topics), ("patterns", patterns)):
            if values:
                origins = (pair.topic_settings[-1] for pair in pairs if getattr(pair.choice, field_name))
                put((*here, field_name), list(values), *settings_of(origins))
        if tuple(common) != DEFAULT_EXCLUDES:
            put((*here, "exclude"), common, *settings_of(pair.exclude_setting for pair in pairs))
        self._bronze(name, pairs, bool(patterns))
        for key, (value, setting) in first.flow.items():
            put((*here, *key), value, *settings_of(pair.flow[key][1] for pair in pairs), setting)
        if ("heartbeats", "enabled") not in first.flow:
            put((*here, "heartbeats", "enabled"), True)
        for index, pair in enumerate(pairs):
            self._target((*here, "targets", index), pair, Choice(topics, patterns, tuple(common)))

    def _target(self, here: Key, pair: Pair, union: Choice) -> None:
        put = self.draft.put
        put((*here, "cluster"), pair.target, *pair.topic_settings[:1])
        if (pair.choice.topics, pair.choice.patterns) != (union.topics, union.patterns):
            for name in ("topics", "patterns"):
                if values := getattr(pair.choice, name):
                    put((*here, name), list(values), *pair.topic_settings[-1:])
        if own := [each for each in pair.choice.exclude if each not in union.exclude]:
            put((*here, "exclude"), own, *settings_of([pair.exclude_setting]))
        for key, (value, setting) in pair.aim.items():
            put((*here, *key), value, setting)

    def _bronze(self, name: str, pairs: list[Pair], by_pattern: bool) -> None:
        """A second flow from one source has tables of its own."""
        others = [pair for pair in self.pairs if pair.source == pairs[0].source and pair not in pairs]
        if others and name != pairs[0].source and ("bronze",) not in pairs[0].flow:
            template = "bronze.{flow}" if by_pattern else "bronze.{flow}__{topic}"
            self.draft.put(("flows", name, "bronze"), template)

    def _refresh(self) -> None:
        key = "refresh.topics.interval.seconds"
        found = settings_of(self.of_pair(pair.source, pair.target, key) for pair in self.pairs)
        numbers = [(int(text), each) for each in found if (text := self.plain(each).strip()).isdecimal()]
        for each in found:
            if not self.plain(each).strip().isdecimal():
                self.fault_once(each, "must be a whole number of seconds")
        if numbers and "refresh_topics_seconds" not in self.draft.raw.get("runner", {}):
            shortest = min(number for number, _ in numbers)
            self.draft.put(("runner", "refresh_topics_seconds"), shortest, *(each for _, each in numbers))

    def _refuse_code(self) -> None:
        """What would change records or run code: going on without it is not the same."""
        for setting in self.settings.by_key.values():
            rest = self.remaining.rest_of(setting.key)
            if rest in ("transforms", "predicates") and setting.value.strip() and self._matters(setting.key):
                self.fault_once(setting, f"cannot run here: {BYTES}. Change records elsewhere, then take it out")

    def _matters(self, key: str) -> bool:
        return "->" not in key or any(key.startswith(pair.prefix) for pair in self.pairs)


DNS = "client.dns.lookup"


def _by_word(role: str, option: str) -> bool:
    return option == DNS or (role == "producer" and option == "compression.type")
