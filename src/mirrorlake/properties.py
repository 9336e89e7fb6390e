"""A .properties file as java.util.Properties reads it, with the line of every key.

    key=value   key: value   key value      the first =, : or blank that no backslash escapes ends the key
    # and !                                 begin a comment, at the start of a logical line only
    a backslash at the end of a line        joins the next one, without its leading blanks
    \\t \\n \\r \\f \\uXXXX                     escapes; before any other character the backslash is dropped

Of a key that stands twice the last one counts, as in Java; `repeats` tells of the others. Java reads bytes as
ISO 8859-1: see `decode`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BLANKS = " \t\f"
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The key ends at the first separator that no backslash escapes; a backslash may be the last character of all.
KEY = re.compile(r"(?:\\.|\\\Z|[^\\=: \t\f])*", re.DOTALL)
SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
ESCAPE = re.compile(r"\\(?:u(.{0,4})|(.)|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Property:
    """One key and its value, and the line on which it begins."""

    line: int
    key: str
    value: str


@dataclass(frozen=True)
class Malformed:
    """A line that Java would refuse; the text is not repeated, since it may be a secret."""

    line: int
    what: str


@dataclass(frozen=True)
class Parsed:
    properties: tuple[Property, ...]
    malformed: tuple[Malformed, ...] = ()

    def values(self) -> dict[str, str]:
        """As Java's map: the last of a key counts."""
        return {each.key: each.value for each in self.properties}


def decode(data: bytes) -> str:
    """Bytes as `Properties.load(InputStream)` reads them, which is how MM2 opens its file."""
    return data.decode("iso-8859-1")


def parse(text: str) -> Parsed:
    found: list[Property] = []
    malformed: list[Malformed] = []
    for line, logical in logical_lines(text):
        try:
            found.append(Property(line, *split(logical)))
        except ValueError as bad:
            malformed.append(Malformed(line, str(bad)))
    return Parsed(tuple(found), tuple(malformed))


def repeats(properties: Iterable[Property]) -> dict[str, list[Property]]:
    """Keys that stand more than once, each with all its lines."""
    by_key: dict[str, list[Property]] = {}
    for each in properties:
        by_key.setdefault(each.key, []).append(each)
    return {key: lines for key, lines in by_key.items() if len(lines) > 1}


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Comments and blank lines left out, continued lines joined; each with the number of its first line.

    As Java's reader: as long as it holds no character, a comment may begin and blank lines are skipped.
    """
    naturals = re.split(r"\r\n|\n|\r", text)
    last = len(naturals) - 1 if naturals[-1] else len(naturals) - 2  # what ends the text begins no line
    held, begun = "", 0
    for index, natural in enumerate(naturals):
        line = natural.lstrip(BLANKS)
        if not held and (not line or line[0] in "#!"):
            continue
        begun = begun if held else index + 1
        joins = _escapes_its_end(line)
        held += line[:-1] if joins else line
        if not joins or index >= last:
            yield begun, held
            held = ""


def _escapes_its_end(line: str) -> bool:
    """Whether an odd number of backslashes stands at the end."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def split(logical: str) -> tuple[str, str]:
    """Key and value of a logical line; ValueError where Java would refuse it."""
    key = KEY.match(logical)
    end = key.end() if key else 0
    separator = SEPARATOR.match(logical, end)
    return unescape(logical[:end]), unescape(logical[separator.end() if separator else end :])


def unescape(text: str) -> str:
    # Java escapes a character beyond the first plane as two halves: join them.
    return ESCAPE.sub(_plain, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(match: re.Match[str]) -> str:
    digits: str | None = match[1]
    if digits is None:
        return CONTROLS.get(match[2], match[2] or "")
    if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
        raise ValueError("\\u must be followed by four hexadecimal digits")
    return chr(int(digits, 16))
