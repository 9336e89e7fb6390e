"""Which topics a pair takes: MM2's lists of names and expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mirrorlake.config import CONTROL_EXCLUDES, DEFAULT_EXCLUDES, MM2_EXCLUDES, first_match

NAME_WITH_DOTS = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
INTERNAL = (*MM2_EXCLUDES[:1], r"__.*", r"\..*", *CONTROL_EXCLUDES)


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
    excludes = DEFAULT_EXCLUDES if exclude is None else without_repeats([*listed(exclude), *INTERNAL])
    if separator not in (".", "-"):
        excludes = without_repeats([*excludes, f".*{re.escape(separator)}internal"])
    names = [(entry, plain_name(entry)) for entry in without_repeats(listed(topics))]
    taken = without_repeats(name for _, name in names if name and not _excluded(excludes, name))
    return Choice(taken, tuple(entry for entry, name in names if not name), tuple(excludes))


def _excluded(excludes: Iterable[str], topic: str) -> bool:
    try:
        return first_match(excludes, topic) is not None
    except re.error:
        return False  # config.py says what is wrong with it


def without_repeats(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
