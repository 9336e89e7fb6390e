"""Topic configurations as on the source: what a target's topic should say for itself, and the difference to now.

MM2's rules. Keys that are excluded, read-only or secret are left alone, and so is what the source's broker file says.
A key at Kafka's default is taken back on the target, or set to the source's value (`use_defaults_from: source`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirrorlake.config import ConfigSync, first_match
from mirrorlake.kafka import TopicSetting

Settings = Mapping[str, TopicSetting]
Changes = Mapping[str, str | None]


def wanted_settings(source: Settings, rules: ConfigSync) -> dict[str, str | None]:
    """What the topic on the target should say for itself; None where it should say nothing."""
    copied = {
        key: setting
        for key, setting in source.items()
        if not setting.fixed and setting.origin != "static_broker" and first_match(rules.exclude, key) is None
    }
    take_back = rules.use_defaults_from == "target"
    return {key: None if take_back and s.origin == "default" else s.value for key, s in copied.items()}


def setting_changes(wanted: Mapping[str, str | None], there: Settings) -> dict[str, str | None]:
    """Only the differences: a value to set, None to take the key back. A topic that is not there says nothing yet.

    A topic lists all keys that its cluster knows: others belong to a newer or older release and are left out.
    """
    own = {key: setting.value for key, setting in there.items() if setting.origin == "topic"}
    known = there or wanted
    return {key: value for key, value in sorted(wanted.items()) if key in known and own.get(key) != value}


def drifted(
    alters: Mapping[str, Changes], wanted: Mapping[str, Changes], before: Mapping[str, Changes]
) -> dict[str, list[str]]:
    """Topic -> keys that differ although the source asks for what it asked before: somebody changed the target."""
    found = {topic: _unmoved(keys, wanted.get(topic, {}), before.get(topic)) for topic, keys in alters.items()}
    return {topic: keys for topic, keys in found.items() if keys}


def _unmoved(keys: Iterable[str], wanted: Changes, before: Changes | None) -> list[str]:
    return [] if before is None else [key for key in keys if key in before and before[key] == wanted.get(key)]
