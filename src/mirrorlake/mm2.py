"""MM2's words, and ours for them: an unchanged mm2.properties becomes our configuration and a note on every key.

`mm2keys` says what becomes of each key in general. `Translator` reads settings as MM2 does (`A->B.key` before `key`,
`alias.key` before `key`) into a `Draft`: plain values for config.py, the setting that each came from, notes, and
faults. `strimzi.py` makes the same settings from a resource.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mirrorlake import properties
from mirrorlake.clusters import CODECS
from mirrorlake.config import MM2_EXCLUDES, Document, Flow, Key, Target, did_you_mean, dotted, first_match
from mirrorlake.errors import Fault, UsageFault
from mirrorlake.mm2keys import (
    BYTES,
    COMMON,
    COMMON_TUNING,
    CONSUMER,
    DROPPED,
    KEYS,
    OFFSET_SYNCS_PRODUCER,
    PRODUCER,
    PRODUCER_TUNING,
    Fate,
    Known,
    Tuned,
    find,
)
from mirrorlake.secrets import is_literal, resolve

# --- words ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One key as MM2 knows it, and how it is called in the file, where that differs."""

    key: str
    value: str
    line: int
    shown: str = ""

    @property
    def name(self) -> str:
        return self.shown or self.key


@dataclass(frozen=True)
class Note:
    """What became of a key. Holds no value that could be a secret."""

    line: int
    key: str
    fate: Fate
    text: str
    unsafe: bool = False

    @property
    def warns(self) -> bool:
        return self.unsafe or self.fate in (Fate.UNSUPPORTED, Fate.UNKNOWN)

    def __str__(self) -> str:
        joint = {Fate.TAKEN: " ", Fate.NOT_NEEDED: " because "}.get(self.fate, ": ")
        return f"{self.key}: {self.fate.value}{joint}{self.text}"


# --- what a translation is --------------------------------------------------------------------------------


@dataclass
class Draft:
    """Our configuration in the making, and where each part of it came from."""

    where: str
    raw: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, tuple[Setting, ...]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    broken: set[Key] = field(default_factory=set)  # parts with a fault already: what follows from it is not repeated
    looked_up: set[str] = field(default_factory=set)  # clusters whose password had to be looked up to be understood

    def put(self, key: Key, value: Any, *origins: Setting) -> None:
        place: Any = self.raw
        for part, following in itertools.pairwise(key):
            empty: Any = [] if isinstance(following, int) else {}
            if isinstance(place, list):
                place.extend({} for _ in range(int(part) + 1 - len(place)))
                place = place[int(part)]
            else:
                place = place.setdefault(part, empty)
        place[key[-1]] = value
        if origins:
            self.origins[key] = origins

    def note(self, setting: Setting, fate: Fate, text: str, unsafe: bool = False) -> None:
        self.notes.append(Note(setting.line, setting.name, fate, text, unsafe))

    def unsafe(self, setting: Setting, text: str) -> None:
        self.note(setting, Fate.TAKEN, f"it is, yet unsafe: {text}", unsafe=True)

    def fault(self, setting: Setting, what: str, part: Key = ()) -> None:
        self.faults.append(Fault(f"{self.where}:{setting.line}", setting.name, what))
        self.broken |= {part} if part else set()


class Settings:
    """All settings by key; the last of a key counts."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self.all = list(settings)
        self.by_key = {setting.key: setting for setting in self.all}

    def first(self, *keys: str) -> Setting | None:
        return next((self.by_key[key] for key in keys if key in self.by_key), None)

    def below(self, prefix: str) -> Iterator[tuple[str, Setting]]:
        """Keys that begin with the prefix, without it."""
        return ((key[len(prefix) :], each) for key, each in self.by_key.items() if key.startswith(prefix))


# --- references -------------------------------------------------------------------------------------------

PROVIDERS = {
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "io.strimzi.kafka.EnvVarConfigProvider": "env",
    "io.strimzi.kafka.KubernetesSecretConfigProvider": "mounted",
    "io.strimzi.kafka.KubernetesConfigMapConfigProvider": "mounted",
}
# Where config.providers does not name them: what they are called everywhere, and our own.
USUAL = {"file": "file", "dir": "dir", "directory": "dir", "env": "env", "secrets": "mounted", "secret": "secret"}
KAFKA_REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}:]*):)?([^}]*)\}")


def providers_of(settings: Settings) -> dict[str, str]:
    """The kind of each provider by its name; a class that we do not know has the kind ``."""
    named = settings.first("config.providers")
    names = listed(named.value) if named else []
    classes = {name: settings.first(f"config.providers.{name}.class") for name in names}
    return USUAL | {name: PROVIDERS.get(each.value.strip(), "") for name, each in classes.items() if each}


def ours(text: str, providers: Mapping[str, str], secrets_dir: str) -> str:
    """Kafka's references as ours; ValueError where a provider is not one we know."""

    def written(match: re.Match[str]) -> str:
        kind, path, key = providers.get(match[1], ""), match[2] or "", match[3]
        if kind == "file":
            return f"${{file:{path}:{key}}}" if path else f"${{file:{key}}}"
        if kind == "mounted":
            return f"${{file:{secrets_dir}/{path.rpartition('/')[2]}/{key}}}"
        plain = {"dir": f"${{file:{path.rstrip('/')}/{key}}}", "env": f"${{env:{key}}}", "secret": match[0]}
        if kind not in plain:
            raise ValueError(
                "refers to a config provider that is not supported: use those for files, directories and the "
                "environment, or ${secret:scope/key}"
            )
        return plain[kind]

    return KAFKA_REFERENCE.sub(written, text)


def whole_file(text: str) -> str | None:
    """The path, where the text is one reference to a whole file."""
    match = re.fullmatch(r"\$\{file:([^}:]+)\}", text.strip())
    return match[1] if match else None


# --- JAAS -------------------------------------------------------------------------------------------------

SECURITY_PACKAGE = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    f"{SECURITY_PACKAGE}.plain.PlainLoginModule",
    f"{SECURITY_PACKAGE}.scram.ScramLoginModule",
    f"{SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
}
CALLBACKS = {
    f"{SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{SECURITY_PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
}
JAAS_TOKEN = re.compile(r"""\s+|//[^\n]*|/\*.*?\*/|"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s=;"']+)|([=;])""", re.S)
USER_OPTIONS = ("username", "clientId", "oauth.client.id")
PASSWORD_OPTIONS = ("password", "clientSecret", "oauth.client.secret")


@dataclass(frozen=True)
class Login:
    module: str
    options: Mapping[str, str] = field(repr=False)

    def first(self, *names: str) -> str | None:
        return next((self.options[name] for name in names if name in self.options), None)


def parse_jaas(text: str) -> Login:
    """One login module and its options. ValueError says what is wrong and repeats nothing."""
    words = list(_jaas_words(text))
    if ";" not in words:
        raise ValueError("does not end with ;")
    if words.index(";") != len(words) - 1:
        raise ValueError("names more than one login module: give one")
    if len(words) < 3 or words[1] not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError("must be: module required option=value …;")
    module = words[0].removeprefix("kafkashaded.")
    if module not in LOGIN_MODULES:
        raise ValueError("names a login module that is not supported: use PLAIN, SCRAM or OAUTHBEARER with Kafka's own")
    options = words[2:-1]
    if len(options) % 3 or any(word != "=" for word in options[1::3]):
        raise ValueError("has an option without a value")
    return Login(module, dict(zip(options[::3], options[2::3], strict=True)))


def _jaas_words(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = JAAS_TOKEN.match(text, at)
        if match is None:
            raise ValueError("has a quote that does not end")
        at = match.end()
        double, single, word, mark = match.groups()
        if double is not None or single is not None:
            yield re.sub(r"\\(.)", r"\1", double if double is not None else single, flags=re.S)
        elif word or mark:
            yield word or mark


# --- topics -----------------------------------------------------------------------------------------------

NAME_WITH_DOTS = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
INTERNAL = (*MM2_EXCLUDES[:1], r"__.*", r"\..*")


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def plain_name(entry: str) -> str | None:
    """The topic that an entry of MM2's `topics` means, where it is a name and no expression."""
    name = entry.replace("\\.", ".").replace("\\-", "-")
    return name if NAME_WITH_DOTS.fullmatch(name) else None


@dataclass(frozen=True)
class Choice:
    """Which topics a pair takes."""

    topics: tuple[str, ...]
    patterns: tuple[str, ...]
    exclude: tuple[str, ...]


def choose(topics: str, exclude: str | None, separator: str) -> Choice:
    """MM2's two lists of expressions; exclusions win, also over plain names."""
    excludes = MM2_EXCLUDES if exclude is None else _without_repeats([*listed(exclude), *INTERNAL])
    if separator not in (".", "-"):
        excludes = _without_repeats([*excludes, f".*{re.escape(separator)}internal"])
    names = [(entry, plain_name(entry)) for entry in _without_repeats(listed(topics))]
    taken = _without_repeats(name for _, name in names if name and not _excluded(excludes, name))
    return Choice(taken, tuple(entry for entry, name in names if not name), tuple(excludes))


def _excluded(excludes: Iterable[str], topic: str) -> bool:
    try:
        return first_match(excludes, topic) is not None
    except re.error:
        return False  # config.py says what is wrong with it


def _without_repeats(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


# --- pairs and flows --------------------------------------------------------------------------------------

POLICIES = {
    "org.apache.kafka.connect.mirror.DefaultReplicationPolicy": "default",
    "org.apache.kafka.connect.mirror.IdentityReplicationPolicy": "identity",
    "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy": "identity",
}
TOPIC_FILTERS = {"org.apache.kafka.connect.mirror.DefaultTopicFilter"}
OTHER_FILTERS = {
    "org.apache.kafka.connect.mirror.DefaultGroupFilter",
    "org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter",
}
FLOW_FIELDS = set(Flow.model_fields) - {"name", "source", "topics", "patterns", "exclude", "targets"}
TARGET_FIELDS = set(Target.model_fields) - {"cluster", "topics", "patterns", "exclude"}
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


def typed(text: str) -> Any:
    """A value as YAML reads it: `true`, `5`, `[a, b]`; text that YAML cannot read is text."""
    document = Document(text)
    return text if document.faults or text.strip().startswith("${") else document.value


OPTION_MAPS = {("client",), ("producer",), ("consumer",), ("fanout", "producer"), ("runner", "spark")}


def split_key(dots: str) -> Key:
    """`ingest.trigger_seconds` by its dots, except that what follows `client.` and the like is one option."""
    parts = dots.split(".")
    end = next((n for n in (1, 2) if tuple(parts[:n]) in OPTION_MAPS and len(parts) > n), None)
    return tuple(parts) if end is None else (*parts[:end], ".".join(parts[end:]))


class Translator:
    """Settings to a draft, in the order in which a reader of the result meets it."""

    def __init__(self, settings: Sequence[Setting], where: str, secrets_dir: str = "") -> None:
        self.settings = Settings(settings)
        self.draft = Draft(where)
        self.secrets_dir = secrets_dir or self._own("secrets-dir") or DEFAULT_SECRETS_DIR
        self.providers = providers_of(self.settings)
        self.seen: set[str] = set()  # keys that a fault or a note of their own is written for
        self.aliases = self._aliases()
        self.pairs = [pair for pair in map(self._pair, *self._enabled()) if pair] if self.aliases else []

    def _own(self, name: str) -> str:
        found = self.settings.first(f"mirrorlake.{name}")
        return found.value.strip() if found else ""

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
        self._remaining()
        return self.draft

    # --- looking at values

    def plain(self, setting: Setting) -> str:
        """A value that is no secret; references in it are looked up now."""
        try:
            text = ours(setting.value, self.providers, self.secrets_dir)
            return text if is_literal(text) else resolve(text)
        except (ValueError, UsageFault) as bad:
            self.fault_once(setting, bad.what if isinstance(bad, UsageFault) else str(bad))
            return ""

    def secret(self, setting: Setting, text: str | None = None) -> str:
        try:
            return ours(setting.value if text is None else text, self.providers, self.secrets_dir)
        except ValueError as bad:
            self.fault_once(setting, str(bad))
            return ""

    def fault_once(self, setting: Setting, what: str, part: Key = ()) -> None:
        if setting.key not in self.seen:
            self.seen.add(setting.key)
            self.draft.fault(setting, what, part)

    def _flag(self, setting: Setting) -> bool:
        text = self.plain(setting).strip().lower()
        if text not in ("true", "false"):
            self.fault_once(setting, "must be true or false")
        return text == "true"

    # --- clusters and pairs

    def _aliases(self) -> list[str]:
        named = self.settings.first("clusters")
        aliases = list(_without_repeats(listed(self.plain(named)))) if named else []
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
        return setting is not None and self._flag(setting)

    def _of_pair(self, source: str, target: str, *keys: str) -> Setting | None:
        """`A->B.key` before `key`; the first key that is there in either form."""
        return self.settings.first(*(form for key in keys for form in (f"{source}->{target}.{key}", key)))

    def _pair(self, source: str, target: str) -> Pair | None:
        topics = self._of_pair(source, target, "topics")
        exclude = self._of_pair(source, target, "topics.exclude", "topics.blacklist")
        separator = self._of_pair(source, target, "replication.policy.separator")
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
        self._topic_filter(pair)
        if factor := self._of_pair(pair.source, pair.target, "replication.factor"):
            pair.aim["replication_factor",] = (typed(self.plain(factor)), factor)
        tolerance = self._of_pair(pair.source, pair.target, "errors.tolerance")
        if tolerance and self.plain(tolerance).strip().lower() == "all":
            pair.flow["on_undeliverable",] = ("dead_letter", tolerance)

    def _naming(self, pair: Pair) -> None:
        policy = self._of_pair(pair.source, pair.target, "replication.policy.class")
        naming = POLICIES.get(self.plain(policy).strip()) if policy else "default"
        if policy and naming:
            pair.aim["naming",] = (naming, policy)
        elif policy and not self._of_pair(pair.source, pair.target, "mirrorlake.naming"):
            advice = "write it in Python and add mirrorlake.naming=python:package.module:Class"
            self.fault_once(policy, f"a policy that Kafka does not bring cannot run here: {advice}")
        separator = self._of_pair(pair.source, pair.target, "replication.policy.separator")
        if separator and naming != "identity":
            pair.aim["separator",] = (self.plain(separator), separator)

    def _topic_filter(self, pair: Pair) -> None:
        chosen = self._of_pair(pair.source, pair.target, "topic.filter.class")
        if chosen and self.plain(chosen).strip() not in TOPIC_FILTERS:
            self.fault_once(chosen, "a filter of your own cannot run here: say it with topics and topics.exclude")
        elif chosen:
            self.say(chosen, Fate.NOT_NEEDED, "it is what topics and topics.exclude mean anyway")

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
            elif tuned := self._tuned(key, setting, {**COMMON_TUNING, **PRODUCER_TUNING}):
                pair.producer[tuned[0],] = (tuned[1], setting)

    def _delivery_timeout(self, pair: Pair, setting: Setting) -> None:
        text = self.plain(setting).strip()
        if text.isdecimal() and 1000 <= int(text) <= 86400000:
            pair.flow["fanout", "delivery_timeout_seconds"] = (int(text) // 1000, setting)
        else:
            self.say(setting, Fate.NOT_NEEDED, "that long means for ever; fanout.delivery_timeout_seconds recovers")

    def _tuned(self, key: str, setting: Setting, table: Mapping[str, Tuned]) -> tuple[str, str] | None:
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

    # --- writing the draft

    def say(self, setting: Setting, fate: Fate, text: str, unsafe: bool = False) -> None:
        if setting.key not in self.seen:
            self.seen.add(setting.key)
            self.draft.note(setting, fate, text, unsafe)

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
                found = self._tuned(rest, setting, table) if rest in table or _by_word(role, rest) else None
                place: Key = ("clusters", alias, role)
            else:
                found = self._tuned(option, setting, COMMON_TUNING) if option in (*COMMON_TUNING, DNS) else None
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
        topics = _without_repeats(topic for pair in pairs for topic in pair.choice.topics)
        patterns = _without_repeats(pattern for pair in pairs for pattern in pair.choice.patterns)
        common = [each for each in first.choice.exclude if all(each in pair.choice.exclude for pair in pairs)]
        for field_name, values in (("topics", topics), ("patterns", patterns)):
            if values:
                origins = (pair.topic_settings[-1] for pair in pairs if getattr(pair.choice, field_name))
                put((*here, field_name), list(values), *_settings(origins))
        if tuple(common) != MM2_EXCLUDES:
            put((*here, "exclude"), common, *_settings(pair.exclude_setting for pair in pairs))
        self._bronze(name, pairs, bool(patterns))
        for key, (value, setting) in first.flow.items():
            put((*here, *key), value, *_settings(pair.flow[key][1] for pair in pairs), setting)
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
            put((*here, "exclude"), own, *_settings([pair.exclude_setting]))
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
        found = _settings(self._of_pair(pair.source, pair.target, key) for pair in self.pairs)
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
            rest = self.rest_of(setting.key)
            if rest in ("transforms", "predicates") and setting.value.strip() and self._matters(setting.key):
                self.fault_once(setting, f"cannot run here: {BYTES}. Change records elsewhere, then take it out")

    def _matters(self, key: str) -> bool:
        return "->" not in key or any(key.startswith(pair.prefix) for pair in self.pairs)

    # --- what is left

    def rest_of(self, key: str) -> str:
        """The key without pair and alias."""
        pair = re.match(r"[^=]+?->", key)
        if pair:
            target = next((a for a in self._longest() if key[pair.end() :].startswith(f"{a}.")), None)
            return key[pair.end() + len(target) + 1 :] if target else key
        alias = next((a for a in self._longest() if key.startswith(f"{a}.")), None)
        return key[len(alias) + 1 :] if alias else key

    def _longest(self) -> list[str]:
        return sorted(self.aliases, key=len, reverse=True)

    def _remaining(self) -> None:
        """A note for every setting: what it was taken as, or what becomes of it in general."""
        taken: dict[str, list[Key]] = {}
        for key, origins in self.draft.origins.items():
            for setting in origins:
                taken.setdefault(setting.key, []).append(key)
        noted = {note.key for note in self.draft.notes if note.fate is not Fate.TAKEN}
        for setting in self.settings.by_key.values():
            if setting.key in taken:
                self.draft.note(setting, Fate.TAKEN, _places(taken[setting.key]))
            elif setting.key not in self.seen and setting.name not in noted:
                fate, text = self._otherwise(setting)
                self.draft.note(setting, fate, text)

    def _otherwise(self, setting: Setting) -> tuple[Fate, str]:
        """The note on a setting that left no trace in the draft."""
        if "->" in setting.key:
            return self._of_disabled(setting) or self._in_general(setting)
        return self._in_general(setting)

    def _of_disabled(self, setting: Setting) -> tuple[Fate, str] | None:
        names = [f"{a}->{b}" for a in self.aliases for b in self.aliases if a != b]
        pair = next((name for name in names if setting.key.startswith(f"{name}.")), None)
        if pair is None:
            wanted = setting.key.partition(".")[0]
            return Fate.UNKNOWN, f"`clusters` does not name both of {wanted}{did_you_mean(wanted, names)}"
        if setting.key == f"{pair}.enabled" and setting.value.strip().lower() != "true":
            return Fate.NOT_NEEDED, f"{pair} does not run"
        enabled = any(each.prefix == f"{pair}." for each in self.pairs)
        return None if enabled else (Fate.NOT_NEEDED, f"{pair} is not enabled")

    def _in_general(self, setting: Setting) -> tuple[Fate, str]:
        rest = self.rest_of(setting.key)
        known = KEYS.get(setting.key) or KEYS.get(rest) or self._client_key(setting.key, rest) or find(KEYS, rest)
        if rest.startswith("mirrorlake."):
            return self._own_in_general(setting)
        if known is None:
            return Fate.UNKNOWN, f"it has no effect{did_you_mean(rest, [*KEYS, *COMMON])}"
        if known.fate is Fate.TAKEN:
            return self._not_taken(setting, rest)
        off = setting.value.strip().lower() == "false" and rest.endswith(".enabled")
        if off and known.fate is Fate.UNSUPPORTED:
            return Fate.NOT_NEEDED, "there is nothing to switch off"
        return known.fate, known.text

    def _own_in_general(self, setting: Setting) -> tuple[Fate, str]:
        name = self.rest_of(setting.key).removeprefix("mirrorlake.")
        if name == "secrets-dir":
            return Fate.TAKEN, "the folder of mounted secrets"
        fields = sorted(FLOW_FIELDS | TARGET_FIELDS | {"storage", "runner", "flow"})
        self.draft.fault(setting, f"unknown key{did_you_mean(name, fields)}; there are {', '.join(fields)}")
        return Fate.UNKNOWN, "see the fault"

    def _not_taken(self, setting: Setting, rest: str) -> tuple[Fate, str]:
        if rest == "clusters":
            return Fate.TAKEN, "clusters"
        if rest.startswith("config.providers"):
            return Fate.TAKEN, "references to files, directories and the environment"
        if rest == "errors.tolerance":
            return Fate.NOT_NEEDED, "a record that a target cannot take stops the flow, as in MM2"
        return Fate.NOT_NEEDED, "a more special key comes before it, or the rest of the file leaves it no use"

    def _client_key(self, key: str, rest: str) -> Known | None:
        """Options of clients, by the role that their prefix names."""
        match = re.match(r"(?:(source|target)\.)?(producer|consumer|admin)\.(override\.)?(?=.)", rest)
        cluster = re.match(r"(?:source|target)\.cluster\.(?=.)", rest)
        bare = key == rest
        if match and bare:
            return Known(Fate.UNKNOWN, DROPPED.format("it below a cluster or a pair, such as B.producer.linger.ms"))
        if match and match[2] == "producer" and "->" in key and not match[3]:
            return OFFSET_SYNCS_PRODUCER
        role = {"producer": PRODUCER, "consumer": CONSUMER}.get(match[2], {}) if match else {}
        option = rest[match.end() :] if match else rest[cluster.end() :] if cluster else rest
        known = find({**COMMON, **role}, option)
        if known and bare and option in COMMON_TUNING:
            return Known(Fate.UNKNOWN, DROPPED.format("it below a cluster, such as A." + option))
        return known


DNS = "client.dns.lookup"
DEFAULT_SECRETS_DIR = "/etc/mirrorlake/secrets"


def _by_word(role: str, option: str) -> bool:
    return option == DNS or (role == "producer" and option == "compression.type")


def _settings(found: Iterable[Setting | None]) -> tuple[Setting, ...]:
    return tuple(dict.fromkeys(each for each in found if each))


def _places(keys: Sequence[Key]) -> str:
    shown = list(dict.fromkeys(dotted(key) for key in keys))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


# --- how to connect ---------------------------------------------------------------------------------------


class Connection:
    """One cluster: where it is, how to connect, who we are."""

    def __init__(self, translator: Translator, alias: str) -> None:
        self.translator = translator
        self.draft = translator.draft
        self.alias = alias
        self.here: Key = ("clusters", alias)
        self.security: Key = (*self.here, "security")

    def write(self) -> None:
        servers = self._servers()
        protocol = self._protocol(servers)
        if protocol.endswith("SSL"):
            self._trust()
            self._identity()
            self._host_names()
        else:
            self._idle("ssl.", "is not reached by TLS")
        if protocol.startswith("SASL_"):
            self._login()
        else:
            self._idle("sasl.", "asks for no user: security.protocol says so")
        self._kind(servers)

    def _idle(self, family: str, why: str) -> None:
        for _, setting in self.translator.settings.below(f"{self.alias}.{family}"):
            self.translator.say(setting, Fate.NOT_NEEDED, f"{self.alias} {why}")

    def get(self, key: str) -> Setting | None:
        """The setting of this cluster: its own, that of one of its clients, or the one for all clusters."""
        forms = [f"{self.alias}.{key}", *(f"{self.alias}.{role}.{key}" for role in ("consumer", "producer", "admin"))]
        for pair in self.translator.pairs:
            side = "source" if pair.source == self.alias else "target" if pair.target == self.alias else ""
            roles = ("cluster", "consumer", "producer", "admin") if side else ()
            forms += [f"{pair.prefix}{side}.{role}.{key}" for role in roles]
            forms += [f"{pair.prefix}producer.override.{key}"] if side == "target" else []
        found = [form for form in forms if form in self.translator.settings.by_key]
        self._tell_conflicts(key, found)
        return self.translator.settings.first(*found, key)

    def _tell_conflicts(self, key: str, found: list[str]) -> None:
        first = self.translator.settings.first(*found)
        for form in found[1:]:
            other = self.translator.settings.by_key[form]
            if first and other.value == first.value:
                self.translator.say(other, Fate.NOT_NEEDED, f"{first.name} says the same")
            elif first:
                text = f"a cluster has one way to connect, and {first.name} says it; give the other one an alias"
                self.translator.say(other, Fate.UNSUPPORTED, text)

    def _put(self, name: str, value: Any, *origins: Setting) -> None:
        self.draft.put((*self.security, name), value, *origins)

    def plain(self, setting: Setting | None) -> str:
        return self.translator.plain(setting).strip() if setting else ""

    def _servers(self) -> Setting | None:
        servers = self.get("bootstrap.servers")
        if servers is None:
            clusters = self.translator.settings.by_key["clusters"]
            self.draft.fault(clusters, f"{self.alias}.bootstrap.servers is missing", self.here)
            return None
        value = self.plain(servers)
        self.draft.put((*self.here, "bootstrap_servers"), value, servers)
        if not value:
            self.draft.broken.add((*self.here, "bootstrap_servers"))
            self.translator.fault_once(servers, "is empty")
        return servers

    def _protocol(self, servers: Setting | None) -> str:
        setting = self.get("security.protocol")
        protocol = self.plain(setting).upper() if setting else "PLAINTEXT"
        if setting:
            self._put("protocol", protocol, setting)
        told = setting or servers
        if told and protocol == "PLAINTEXT":
            self.draft.unsafe(told, f"{self.alias} is reached in plain text, so anyone on the way can read and change")
        if setting and protocol == "SASL_PLAINTEXT":
            self.draft.put((*self.here, "allow_insecure"), True, setting)
            self.draft.unsafe(setting, f"the password for {self.alias} and all records go unencrypted")
        return protocol

    # --- TLS

    def _trust(self) -> None:
        store, inline = self.get("ssl.truststore.location"), self.get("ssl.truststore.certificates")
        if inline:
            self._file_of(inline, "ca", "ssl.truststore.type=PEM and ssl.truststore.location")
        elif store:
            self._store(store, "ssl.truststore", {"ca": ".pem"}, _trust_commands)

    def _identity(self) -> None:
        store = self.get("ssl.keystore.location")
        key, chain = self.get("ssl.keystore.key"), self.get("ssl.keystore.certificate.chain")
        if key and chain:
            self._file_of(chain, "certificate", "a PEM file and ${dir:…} or ${file:…}")
            self._file_of(key, "key", "a PEM file and ${dir:…} or ${file:…}")
        elif store:
            self._store(store, "ssl.keystore", {"certificate": ".crt", "key": ".key"}, _identity_commands)
        else:
            return
        passwords = [self.get("ssl.key.password"), None if key else self.get("ssl.keystore.password")]
        if password := next((each for each in passwords if each), None):
            self._password("key_password", password, self.translator.secret(password))

    def _store(self, store: Setting, family: str, suffixes: Mapping[str, str], commands: Callable[[str], str]) -> None:
        """PEM as it is; a Java store as the PEM files that the commands make of it."""
        path = self.plain(store)
        kind = self.get(f"{family}.type")
        pem = self.plain(kind).upper() == "PEM"
        origins = (store, kind) if kind else (store,)
        made = {name: path if pem else str(PurePosixPath(path).with_suffix(end)) for name, end in suffixes.items()}
        for name, file in made.items():
            self._put(name, file, *origins)
        if not pem and not all(Path(file).exists() for file in made.values()):
            text = f"librdkafka reads PEM, not Java's stores; make {' and '.join(made.values())} once: {commands(path)}"
            self.draft.note(store, Fate.UNSUPPORTED, text)

    def _file_of(self, setting: Setting, name: str, advice: str) -> None:
        path = whole_file(self.translator.secret(setting))
        if path:
            self._put(name, path, setting)
        else:
            self.translator.fault_once(setting, f"is written out here: put it into a file and use {advice}")

    def _host_names(self) -> None:
        setting = self.get("ssl.endpoint.identification.algorithm")
        if setting and self.plain(setting).lower() in ("", "none"):
            self._put("verify_hostname", False, setting)
            self.draft.put((*self.here, "allow_insecure"), True, setting)
            self.draft.unsafe(setting, f"any host with a trusted certificate can pretend to be {self.alias}")
        elif setting:
            self._put("verify_hostname", True, setting)

    # --- SASL

    def _login(self) -> None:
        mechanism, jaas = self.get("sasl.mechanism"), self.get("sasl.jaas.config")
        if mechanism:
            self._mechanism(mechanism)
        if jaas:
            self._jaas(jaas)
        self._oauth()
        for key in ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class", "sasl.login.class"):
            handler = self.get(key)
            if handler and self.plain(handler) and self.plain(handler) not in CALLBACKS:
                self.translator.fault_once(
                    handler, "a class of your own cannot run here: use PLAIN, SCRAM or OAUTHBEARER"
                )

    def _mechanism(self, setting: Setting) -> None:
        mechanism = self.plain(setting).upper()
        if mechanism in ("GSSAPI", "AWS_MSK_IAM"):
            text = f"{mechanism} is not supported: use SCRAM, OAUTHBEARER or mutual TLS"
            self.translator.fault_once(setting, text, self.security)
        self._put("mechanism", mechanism, setting)

    def _jaas(self, setting: Setting) -> None:
        text = self.translator.secret(setting)
        looked_up = re.fullmatch(r"\s*\$\{[^}]*\}\s*", text) is not None
        try:
            login = parse_jaas(resolve(text) if looked_up else text)
        except (ValueError, UsageFault) as bad:
            what = bad.what if isinstance(bad, UsageFault) else str(bad)
            self.translator.fault_once(setting, what, self.security)
            return
        if looked_up:
            self.draft.looked_up.add(self.alias)
        self._take(login, setting)

    def _take(self, login: Login, setting: Setting) -> None:
        user, password = login.first(*USER_OPTIONS), login.first(*PASSWORD_OPTIONS)
        if user:
            self._put("username", user, setting)
        if password:
            self._password("password", setting, password)
        for name, options in (("token_endpoint", ("oauth.token.endpoint.uri",)), ("scope", ("scope", "oauth.scope"))):
            if (value := login.first(*options)) and "oauthbearer" in login.module:
                self._put(name, value, setting)

    def _oauth(self) -> None:
        stem = "sasl.oauthbearer."
        for key, name in (("token.endpoint.url", "token_endpoint"), ("scope", "scope")):
            if setting := self.get(stem + key):
                self._put(name, self.plain(setting), setting)
        if user := self.get(stem + "client.credentials.client.id"):
            self._put("username", self.translator.secret(user), user)
        if secret := self.get(stem + "client.credentials.client.secret"):
            self._password("password", secret, self.translator.secret(secret))

    def _password(self, name: str, setting: Setting, text: str) -> None:
        self._put(name, text, setting)
        if is_literal(text):
            self.draft.put((*self.here, "allow_literal_secrets"), True, setting)
            advice = "write ${env:NAME} or ${file:/path:KEY} instead"
            self.draft.unsafe(setting, f"a password of {self.alias} is written out in a file; {advice}")

    def _kind(self, servers: Setting | None) -> None:
        """Managed services are known by their host names; each has limits that the kind knows."""
        cluster = self.draft.raw.get("clusters", {}).get(self.alias, {})
        security = cluster.get("security", {})
        hosts = [server.rpartition(":")[0].strip() for server in str(cluster.get("bootstrap_servers", "")).split(",")]
        user = (security.get("protocol"), security.get("mechanism"), security.get("username"))
        for kind, (domain, name) in SERVICES.items():
            if servers and user == ("SASL_SSL", "PLAIN", name) and all(host.endswith(domain) for host in hosts):
                self.draft.put((*self.here, "kind"), kind, servers)


SERVICES = {
    "event_hubs": (".servicebus.windows.net", "$ConnectionString"),
    "event_streams": (".eventstreams.cloud.ibm.com", "token"),
}


def _trust_commands(store: str) -> str:
    pem = str(PurePosixPath(store).with_suffix(".pem"))
    return f"keytool -list -rfc -keystore {shlex.quote(store)} > {shlex.quote(pem)}"


def _identity_commands(store: str) -> str:
    path = PurePosixPath(store)
    p12, crt, key = (shlex.quote(str(path.with_suffix(end))) for end in (".p12", ".crt", ".key"))
    source = shlex.quote(store)
    convert = f"keytool -importkeystore -srckeystore {source} -destkeystore {p12} -deststoretype PKCS12 && "
    read = p12 if path.suffix not in (".p12", ".pfx") else source
    steps = f"openssl pkcs12 -in {read} -nokeys -out {crt} && openssl pkcs12 -in {read} -nocerts -out {key}"
    return steps if read == source else convert + steps


# --- from text --------------------------------------------------------------------------------------------


def read(text: str, where: str, secrets_dir: str = "") -> Draft:
    """An mm2.properties, as far as it can be understood; `faults` say what cannot."""
    parsed = properties.parse(text)
    joined, mended = _mend_jaas(parsed.properties)
    settings = [Setting(each.key, each.value, each.line) for each in joined]
    draft = Translator(settings, where, secrets_dir)()
    draft.faults += [Fault(f"{where}:{bad.line}", "", bad.what) for bad in parsed.malformed]
    for key, lines in properties.repeats(joined).items():
        counts = f"it stands on lines {', '.join(str(each.line) for each in lines)}, of which the last counts"
        draft.notes += [Note(each.line, key, Fate.NOT_NEEDED, counts, unsafe=True) for each in lines[:-1]]
    draft.notes += mended
    draft.notes.sort(key=lambda note: note.line)
    return draft


def _mend_jaas(found: Sequence[properties.Property]) -> tuple[list[properties.Property], list[Note]]:
    """A login whose options stand on the next line, without the backslash: what was meant is plain."""
    kept: list[properties.Property] = []
    notes: list[Note] = []
    for each in found:
        before = kept[-1] if kept else None
        if before and _is_rest_of_jaas(before, each):
            value = f"{before.value} {each.key}={each.value}"
            kept[-1] = properties.Property(before.line, before.key, value)
            text = f"line {each.line} was taken as its rest: a backslash is missing at the end, and MM2 would refuse it"
            notes.append(Note(before.line, before.key, Fate.TAKEN, text, unsafe=True))
        else:
            kept.append(each)
    return kept, notes


def _is_rest_of_jaas(before: properties.Property, each: properties.Property) -> bool:
    unfinished = before.key.endswith("sasl.jaas.config") and not before.value.rstrip().endswith(";")
    return unfinished and each.key in USER_OPTIONS + PASSWORD_OPTIONS and each.value.startswith(('"', "'"))
