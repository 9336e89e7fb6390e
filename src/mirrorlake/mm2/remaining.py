"""A note for every setting that nothing else spoke of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mirrorlake.config import Key, did_you_mean, dotted
from mirrorlake.mm2.draft import Setting
from mirrorlake.mm2.pairs import FLOW_FIELDS, TARGET_FIELDS, PairReader
from mirrorlake.mm2keys import (
    COMMON,
    COMMON_TUNING,
    CONSUMER,
    DROPPED,
    KEYS,
    OFFSET_SYNCS_PRODUCER,
    PRODUCER,
    Fate,
    Known,
    find,
)


class Remaining:
    """What a setting was taken as, or what becomes of it in general."""

    def __init__(self, reader: PairReader) -> None:
        self.reader = reader

    def rest_of(self, key: str) -> str:
        """The key without pair and alias."""
        pair = re.match(r"[^=]+?->", key)
        if pair:
            target = next((a for a in self._longest() if key[pair.end() :].startswith(f"{a}.")), None)
            return key[pair.end() + len(target) + 1 :] if target else key
        alias = next((a for a in self._longest() if key.startswith(f"{a}.")), None)
        return key[len(alias) + 1 :] if alias else key

    def _longest(self) -> list[str]:
        return sorted(self.reader.aliases, key=len, reverse=True)

    def write(self) -> None:
        """A note for every setting: what it was taken as, or what becomes of it in general."""
        taken: dict[str, list[Key]] = {}
        for key, origins in self.reader.draft.origins.items():
            for setting in origins:
                taken.setdefault(setting.key, []).append(key)
        noted = {note.key for note in self.reader.draft.notes if note.fate is not Fate.TAKEN}
        for setting in self.reader.settings.by_key.values():
            if setting.key in taken:
                self.reader.draft.note(setting, Fate.TAKEN, _places(taken[setting.key]))
            elif setting.key not in self.reader.seen and setting.name not in noted:
                fate, text = self._otherwise(setting)
                self.reader.draft.note(setting, fate, text)

    def _otherwise(self, setting: Setting) -> tuple[Fate, str]:
        """The note on a setting that left no trace in the draft."""
        if "->" in setting.key:
            return self._of_disabled(setting) or self._in_general(setting)
        return self._in_general(setting)

    def _of_disabled(self, setting: Setting) -> tuple[Fate, str] | None:
        names = [f"{a}->{b}" for a in self.reader.aliases for b in self.reader.aliases if a != b]
        pair = next((name for name in names if setting.key.startswith(f"{name}.")), None)
        if pair is None:
            wanted = setting.key.partition(".")[0]
            return Fate.UNKNOWN, f"`clusters` does not name both of {wanted}{did_you_mean(wanted, names)}"
        if setting.key == f"{pair}.enabled" and setting.value.strip().lower() != "true":
            return Fate.NOT_NEEDED, f"{pair} does not run"
        enabled = any(each.prefix == f"{pair}." for each in self.reader.pairs)
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
        self.reader.draft.fault(setting, f"unknown key{did_you_mean(name, fields)}; there are {', '.join(fields)}")
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


def _places(keys: Sequence[Key]) -> str:
    shown = list(dict.fromkeys(dotted(key) for key in keys))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
