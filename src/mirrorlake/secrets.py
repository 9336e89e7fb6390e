"""References to secrets, resolved last, in the process that needs them.

    ${env:NAME}             an environment variable
    ${file:/path}           a whole file, stripped
    ${file:/path:KEY}       one KEY=value line of a .properties file
    ${secret:scope/key}     a Databricks secret scope

A `Secret` carries the text with its references; only `resolve` ever sees the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mirrorlake import properties
from mirrorlake.errors import UsageFault

REFERENCE = re.compile(r"\$\{([^}]*)\}")
HIDDEN = "***"
SYNTAX = "${env:NAME}, ${file:/path}, ${file:/path:KEY} or ${secret:scope/key}"


class Databricks(Protocol):
    """What we need of `dbutils.secrets`."""

    def get(self, scope: str, key: str) -> str: ...


@dataclass(frozen=True)
class SecretRef:
    """One reference: where a secret lies, and never what it is."""

    kind: str  # env, file, secret
    place: str  # variable, path, scope
    key: str = ""

    def __str__(self) -> str:
        separator = "/" if self.kind == "secret" else ":"
        return f"${{{self.kind}:{self.place}{separator + self.key if self.key else ''}}}"


@dataclass(frozen=True, repr=False)
class Secret:
    """Text with references to secrets. Printing shows the references and hides all else."""

    text: str

    def __repr__(self) -> str:
        shown = "".join(str(part) if isinstance(part, SecretRef) else HIDDEN for part in parts(self.text))
        return f"Secret({shown or HIDDEN})"

    __str__ = __repr__

    @property
    def literal(self) -> bool:
        return is_literal(self.text)

    def resolve(self, databricks: Databricks | None = None) -> str:
        return resolve(self.text, databricks)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        # Only config.py speaks pydantic; imported here so that this module stays free of it.
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(repr)
        )

    @classmethod
    def _validate(cls, value: object) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str):
            raise ValueError("must be text: quote it")
        parts(value)
        return cls(value)


def parts(text: str) -> list[str | SecretRef]:
    """The text cut into plain pieces and references, in order; ValueError where a reference is malformed."""
    pieces: list[str | SecretRef] = []
    last = 0
    for match in REFERENCE.finditer(text):
        pieces += [text[last : match.start()], parse_reference(match[1])]
        last = match.end()
    return [piece for piece in [*pieces, text[last:]] if piece]


def parse_reference(inside: str) -> SecretRef:
    """`env:NAME` and the like, without braces. The message does not repeat the text: it may be a secret."""
    kind, _, rest = inside.partition(":")
    if kind == "env" and rest:
        return SecretRef(kind, rest)
    if kind == "file" and rest:
        path, _, key = rest.partition(":")
        return SecretRef(kind, path, key)
    scope, _, key = rest.partition("/")
    if kind == "secret" and scope and key:
        return SecretRef(kind, scope, key)
    raise ValueError(f"not a reference we know; write {SYNTAX}")


def is_literal(text: str) -> bool:
    """Whether the text holds no reference at all."""
    return REFERENCE.search(text) is None


def resolve(text: str, databricks: Databricks | None = None) -> str:
    """The text with every reference replaced by its value. What a value holds is not looked at again."""
    try:
        pieces = parts(text)
    except ValueError as bad:
        raise UsageFault(f"A setting holds a reference that is {bad}.") from None
    return "".join(piece if isinstance(piece, str) else look_up(piece, databricks) for piece in pieces)


def look_up(reference: SecretRef, databricks: Databricks | None = None) -> str:
    finders: dict[str, Callable[[SecretRef], str]] = {
        "env": _from_environment,
        "file": _from_file,
        "secret": lambda ref: _from_databricks(ref, databricks),
    }
    return finders[reference.kind](reference)


def _from_environment(reference: SecretRef) -> str:
    if reference.place not in os.environ:
        raise UsageFault(
            f"Secret {reference}: process {os.getpid()} has no environment variable {reference.place}.",
            f"export {reference.place} where the command starts.",
        )
    return os.environ[reference.place]


def _from_file(reference: SecretRef) -> str:
    text = _read(reference)
    if not reference.key:
        return text.strip()
    values = _properties(reference, text)
    if reference.key not in values:
        raise UsageFault(
            f"Secret {reference}: the file {reference.place} has no line {reference.key}=….",
            f"Add it; {len(values)} other keys were found there.",
        )
    return values[reference.key]


def _properties(reference: SecretRef, text: str) -> dict[str, str]:
    """As Java reads it: the same file then serves Kafka's own FileConfigProvider, which refuses what we refuse."""
    parsed = properties.parse(text)
    for bad in parsed.malformed:
        raise UsageFault(
            f"Secret {reference}: line {bad.line} of the file {reference.place}: {bad.what}.",
            "Mend the line: Java would refuse the whole file.",
        )
    return parsed.values()


def _read(reference: SecretRef) -> str:
    try:
        return Path(reference.place).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as bad:
        # A decoding error quotes the bytes it met, which may be the secret: name only the kind of error.
        reason = bad.strerror if isinstance(bad, OSError) else "it is not UTF-8 text"
        raise UsageFault(
            f"Secret {reference}: the file {reference.place} could not be read: {reason}.",
            "Check the path and its permissions on this machine.",
        ) from None


def _from_databricks(reference: SecretRef, databricks: Databricks | None) -> str:
    if databricks is None:
        raise UsageFault(
            f"Secret {reference}: this process has no access to Databricks secret scopes.",
            "Outside a Databricks driver use ${env:NAME} or ${file:/path:KEY}.",
        )
    try:
        return databricks.get(reference.place, reference.key)
    except Exception as bad:  # dbutils raises Java errors of many types
        raise UsageFault(
            f"Secret {reference}: no key {reference.key} in scope {reference.place}: {type(bad).__name__}.",
            f"databricks secrets list-secrets {reference.place}",
        ) from None


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with every resolved value hidden, the longest first so that no rest of one stays."""
    for value in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text
