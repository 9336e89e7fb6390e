"""A configuration in any of its three formats, told apart by content.

Our own YAML goes through config.py alone. An mm2.properties and a Strimzi `KafkaMirrorMaker2` are put into our words
first; what was then found wrong is told by the line and key of the file that the user wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from mirrorlake import config as own
from mirrorlake import mm2, properties, strimzi
from mirrorlake.config import Config, Key, dotted
from mirrorlake.errors import ConfigFault, Fault, UsageFault
from mirrorlake.mm2 import Draft, Note


class Format(str, Enum):
    YAML = "Mirrorlake's YAML"
    MM2 = "MM2 properties"
    STRIMZI = "Strimzi's KafkaMirrorMaker2"


@dataclass(frozen=True)
class Loaded:
    config: Config
    format: Format = Format.YAML
    notes: tuple[Note, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)  # our words as plain values; empty for our YAML
    looked_up: frozenset[str] = frozenset()  # clusters whose password was looked up while reading

    def warnings(self) -> list[str]:
        """What of an MM2 file is unsafe, not supported or unknown."""
        return [f"warning: {self.config.path}:{note.line}: {note}" for note in self.notes if note.warns]


def load_any(path: Path, secrets_dir: Path | None = None) -> Loaded:
    """The configuration in the file, whichever format it has; one ConfigFault with everything that is wrong."""
    data = _read(path)
    text = properties.decode(data)
    found = tell(text, path.suffix)
    if found is Format.YAML:
        return Loaded(own.load(path))
    folder = str(secrets_dir or os.environ.get("MIRRORLAKE_SECRETS_DIR", ""))
    if found is Format.MM2:
        draft = mm2.read(text, str(path), folder)
    else:
        draft = strimzi.read(_utf8(data, path), str(path), folder)
    config = build(draft, str(path))
    return Loaded(
        config.model_copy(update={"path": path}), found, tuple(draft.notes), draft.raw, frozenset(draft.looked_up)
    )


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > own.MAX_FILE_BYTES:
            raise UsageFault(f"{path} is larger than {own.MAX_FILE_BYTES} bytes: not a configuration.")
        return path.read_bytes()
    except OSError as bad:
        raise UsageFault(f"{path} could not be read: {bad.strerror}.", "Check the path given with -c.") from None


def _utf8(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageFault(f"{path} is not UTF-8 text.", "Check the path given with -c.") from None


# --- telling apart ----------------------------------------------------------------------------------------

STRIMZI_KIND = re.compile(r"""^[\s{"',-]*kind["']?\s*:\s*["']?KafkaMirrorMaker2\b""", re.MULTILINE)


def tell(text: str, suffix: str = "") -> Format:
    """Which format a text is in. Whatever is neither of the others is taken for our YAML."""
    if STRIMZI_KIND.search(text):
        return Format.STRIMZI
    return Format.MM2 if _is_mm2(text) or suffix == ".properties" else Format.YAML


def _is_mm2(text: str) -> bool:
    """`clusters` with names on its line, a pair, or a cluster's address in MM2's words, at the left margin."""
    found = [each for each in properties.parse(text).properties if not _indented(text, each.line)]
    named = any(each.key == "clusters" and re.match(r"[A-Za-z0-9]", each.value) for each in found)
    pairs = any(re.fullmatch(r"[^\s.{}\[\]'\"]+->.+\..+", each.key) for each in found)
    return named or pairs or any(each.key.endswith(".bootstrap.servers") for each in found)


def _indented(text: str, line: int) -> bool:
    """Below a key of YAML; a properties file that is indented as a whole has its `clusters` indented too."""
    lines = re.split(r"\r\n|\n|\r", text)
    first = next((each for each in lines if each.strip() and each.strip()[0] not in "#!-%"), "")
    margin = len(first) - len(first.lstrip())
    return len(lines[line - 1]) - len(lines[line - 1].lstrip()) > margin


# --- from a draft to a configuration ----------------------------------------------------------------------


def build(draft: Draft, where: str) -> Config:
    config, wrong = own.validated(draft.raw) if draft.raw.get("flows") else (None, [])
    faults = list(draft.faults)
    faults += [_placed(key, what, draft, where) for key, what in wrong if not _follows(key, draft)]
    if config and not faults:
        return config
    faults.sort(key=lambda fault: int(fault.where.rpartition(":")[2]))
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    raise ConfigFault(f"{where}: {count}.", "docs/migrate-from-mm2.md lists every key.", faults=tuple(faults))


def _placed(key: Key, what: str, draft: Draft, where: str) -> Fault:
    """A fault in our words, at the setting that the nearest part of the draft came from."""
    near = [key[:end] for end in range(len(key), 0, -1)]
    found = next((draft.origins[part][-1] for part in near if part in draft.origins), None) or _below(near, draft)
    if found is None:
        return Fault(f"{where}:1", dotted(key), what)
    if "${" in found.value:  # what a reference led to is not repeated
        what = re.sub(r"(['\"]).*?\1", "the value", what)
    return Fault(f"{where}:{found.line}", found.name, f"{dotted(key)}: {what}")


def _below(near: list[Key], draft: Draft) -> mm2.Setting | None:
    """The first setting that made anything below the nearest part that has any."""
    for part in near:
        for key, origins in draft.origins.items():
            if key[: len(part)] == part:
                return origins[0]
    return None


def _follows(key: Key, draft: Draft) -> bool:
    return any(key[: len(part)] == part for part in draft.broken)


# --- writing our YAML -------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _ordered(raw: Mapping[str, Any]) -> dict[str, Any]:
    """In the order in which docs/configuration.md explains the keys."""
    models: dict[str, type[own.Model]] = {"clusters": own.Cluster, "flows": own.Flow}
    return {
        key: {name: _sorted(each, models[key]) for name, each in raw[key].items()} if key in models else raw[key]
        for key in own.Config.model_fields
        if key in raw
    }


def _sorted(values: Mapping[str, Any], model: type[own.Model]) -> dict[str, Any]:
    return {key: values[key] for key in model.model_fields if key in values}


def to_yaml(loaded: Loaded) -> str:
    """Our YAML for a configuration that came in other words, with a line for every key of the old file."""
    if loaded.looked_up:
        clusters = ", ".join(sorted(loaded.looked_up))
        raise UsageFault(
            f"The password of {clusters} stands inside a sasl.jaas.config that is a reference as a whole: "
            "writing it out would copy the secret.",
            'Give it as a reference of its own: … username="${file:/path:USER}" password="${file:/path:PASSWORD}";',
        )
    ordered = _ordered(loaded.raw)
    body = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    source = loaded.config.path.name if loaded.config.path else "a file"
    head = f"# Made by `mirrorlake import` from {_comment(source)} ({loaded.format.value}).\n"
    return head + body + notes_as_comments(loaded.notes)


def notes_as_comments(notes: Iterable[Note]) -> str:
    lines = [f"#   {note.line}: {_comment(str(note))}\n" for note in notes]
    return "\n# What became of each key, by its line there:\n" + "".join(lines) if lines else ""


def _comment(text: str) -> str:
    """On one line, whatever a key holds."""
    return "".join(char if char.isprintable() else " " for char in text)
