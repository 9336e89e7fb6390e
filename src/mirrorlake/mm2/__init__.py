"""MM2's words, and ours for them: an unchanged mm2.properties becomes our configuration and a note on every key.

`mm2keys` says what becomes of each key in general. `Translator` reads settings as MM2 does (`A->B.key` before `key`,
`alias.key` before `key`) into a `Draft`: plain values for config.py, the setting that each came from, notes, and
faults. `strimzi.py` makes the same settings from a resource. In the order of reading:

draft        settings, notes, the configuration in the making
topics       which topics a pair takes
references   Kafka's references as ours
jaas         one login taken apart
reader       values, looked up and with MM2's precedence
pairs        A->B, and what is set for it
connection   how to reach a cluster
remaining    a note on every other key
translator   all of it, in order
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlake import properties
from mirrorlake.errors import Fault
from mirrorlake.mm2.draft import Draft, Note, Setting
from mirrorlake.mm2.jaas import PASSWORD_OPTIONS, SECURITY_PACKAGE, USER_OPTIONS, parse_jaas
from mirrorlake.mm2.references import DEFAULT_SECRETS_DIR
from mirrorlake.mm2.topics import plain_name
from mirrorlake.mm2.translator import Translator
from mirrorlake.mm2keys import Fate

__all__ = [
    "DEFAULT_SECRETS_DIR",
    "SECURITY_PACKAGE",
    "Draft",
    "Note",
    "Setting",
    "Translator",
    "parse_jaas",
    "plain_name",
    "read",
]


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
