"""Names: a topic's table, and a source topic's name on the target.

Table names on Databricks are case-insensitive and know no dots or dashes, so topics are escaped:
`a-z 0-9` stand for themselves, `_` too where a plain character follows, and `__` begins an escape
(`__d` dot, `__h` hyphen, `__u` underscore, `__cX` capital x). Escaped aliases never contain `__`, so the
first `__` of `<alias>__<topic>` is the separator and distinct pairs have distinct names.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from typing import Protocol

from mirrorlake.errors import UsageFault

MAX_TOPIC_CHARACTERS = 249
MAX_TABLE_CHARACTERS = 200
MAX_ALIAS_CHARACTERS = 50
_LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ESCAPES = {".": "__d", "-": "__h", "_": "__u"}
_UNESCAPES = {"d": ".", "h": "-", "u": "_"}
_HASHED = re.compile(r"_(?![0-9]{8}$)[0-9a-f]{8}$")
"""How a hashed alias ends; a date does not look so."""


def is_legal_topic(topic: str) -> bool:
    return bool(_LEGAL_TOPIC.fullmatch(topic)) and topic not in (".", "..")


def _escape_character(character: str, following: str) -> str:
    if character.isdigit() or (character.isascii() and character.islower()):
        return character
    if character == "_" and following and following not in "._-" and not following.isupper():
        return "_"
    return _ESCAPES.get(character) or f"__c{character.lower()}"


def escape_topic(topic: str) -> str:
    """The topic as a table-name part; `unescape_topic` takes it back unless it had to be shortened."""
    written = map(_escape_character, topic, [*topic[1:], ""])
    return _shortened("".join(written), topic)


def _shortened(written: str, topic: str) -> str:
    if len(written) <= MAX_TABLE_CHARACTERS:
        return written
    # `__z` is no escape, so a shortened name never equals a whole one; the table's properties keep the topic.
    return written[:150].rstrip("_") + "__z" + hashlib.sha256(topic.encode()).hexdigest()[:24]


def unescape_topic(written: str) -> str:
    if "__z" in written:
        raise ValueError(f"{written} was shortened: the table's property mirrorlake.topic holds the topic")
    return re.sub(
        r"__(?:c([a-z])|([dhu]))",
        lambda found: found[1].upper() if found[1] else _UNESCAPES[found[2]],
        written,
    )


def escape_alias(alias: str) -> str:
    """A cluster's alias or a flow's name as part of a table name, no `__`; hashed where it lost something.

    And hashed where it looks as if it were: so nothing that is not hashed equals what is.
    """
    plain = re.sub(r"_+", "_", re.sub(r"[^a-z0-9]", "_", alias.lower())).strip("_")
    if plain == alias and len(alias) <= MAX_ALIAS_CHARACTERS and not _HASHED.search(alias):
        return plain
    return f"{plain[: MAX_ALIAS_CHARACTERS - 9].rstrip('_')}_{_hash(alias)}"


def _hash(alias: str) -> str:
    """Eight digits of its hash, at least one of them a letter."""
    digits = hashlib.sha256(alias.encode()).hexdigest()
    pieces = (digits[at : at + 8] for at in range(0, len(digits), 8))
    return next((piece for piece in pieces if not piece.isdigit()), "a" + digits[:7])


def table_name(template: str, source: str, topic: str) -> str:
    return template.format(source=escape_alias(source), topic=escape_topic(topic))


class NamingPolicy(Protocol):
    """What a source topic is called on the target, and back."""

    def target_topic(self, source: str, topic: str) -> str: ...

    def source_of(self, topic: str) -> str | None:
        """The alias a topic was relayed from, None for a topic of the cluster's own."""

    def upstream_topic(self, topic: str) -> str | None:
        """The topic's name one hop back."""


class PrefixedNames:
    """MM2's default: `<alias><separator><topic>`."""

    def __init__(self, separator: str = ".") -> None:
        self.separator = separator

    def target_topic(self, source: str, topic: str) -> str:
        return f"{source}{self.separator}{topic}"

    def source_of(self, topic: str) -> str | None:
        alias, separator, rest = topic.partition(self.separator)
        return alias if separator and rest else None

    def upstream_topic(self, topic: str) -> str | None:
        _, _, rest = topic.partition(self.separator)
        return rest or None


class IdenticalNames:
    """The same name on both sides; loops are cut by provenance, not by name."""

    def target_topic(self, source: str, topic: str) -> str:
        return topic

    def source_of(self, topic: str) -> str | None:
        return None

    def upstream_topic(self, topic: str) -> str | None:
        return topic


def naming_policy(naming: str, separator: str) -> NamingPolicy:
    """The policy a target asks for: `default`, `identity` or `python:package.module:Class`."""
    if naming == "default":
        return PrefixedNames(separator)
    if naming == "identity":
        return IdenticalNames()
    return _custom_policy(naming.removeprefix("python:"))


def _custom_policy(path: str) -> NamingPolicy:
    module, _, attribute = path.partition(":")
    try:
        policy: NamingPolicy = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise UsageFault(
            f"naming policy python:{path} cannot be loaded: {error}",
            "give python:package.module:Class, importable where mirrorlake runs, made without arguments",
        ) from error
    return policy


def is_cycle(policy: NamingPolicy, topic: str, target: str, all_sources: frozenset[str]) -> bool:
    """Would relaying this topic to the target bring a record back to where it came from?"""
    source = policy.source_of(topic)
    if source is None or source not in all_sources:
        return False
    upstream = policy.upstream_topic(topic)
    if source == target:
        return True
    return upstream is not None and upstream != topic and is_cycle(policy, upstream, target, all_sources)
