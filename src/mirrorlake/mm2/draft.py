"""A configuration in the making: MM2's settings, our words for them, and a note on every key."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.config import Key
from mirrorlake.errors import Fault
from mirrorlake.mm2keys import Fate


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
