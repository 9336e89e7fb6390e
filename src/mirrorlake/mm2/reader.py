"""Settings looked at as MM2 does: references looked up, `A->B.key` before `key`, each fault told once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mirrorlake.config import Document, Key
from mirrorlake.errors import UsageFault
from mirrorlake.mm2.draft import Draft, Setting, Settings
from mirrorlake.mm2.references import DEFAULT_SECRETS_DIR, ours, providers_of
from mirrorlake.mm2keys import Fate
from mirrorlake.secrets import is_literal, resolve


class Reader:
    """Values of settings, and what was said about them."""

    def __init__(self, settings: Sequence[Setting], where: str, secrets_dir: str = "") -> None:
        self.settings = Settings(settings)
        self.draft = Draft(where)
        self.secrets_dir = secrets_dir or self._own("secrets-dir") or DEFAULT_SECRETS_DIR
        self.providers = providers_of(self.settings)
        self.seen: set[str] = set()  # keys that a fault or a note of their own is written for

    def _own(self, name: str) -> str:
        found = self.settings.first(f"mirrorlake.{name}")
        return found.value.strip() if found else ""

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

    def flag(self, setting: Setting) -> bool:
        text = self.plain(setting).strip().lower()
        if text not in ("true", "false"):
            self.fault_once(setting, "must be true or false")
        return text == "true"

    def say(self, setting: Setting, fate: Fate, text: str, unsafe: bool = False) -> None:
        if setting.key not in self.seen:
            self.seen.add(setting.key)
            self.draft.note(setting, fate, text, unsafe)

    def of_pair(self, source: str, target: str, *keys: str) -> Setting | None:
        """`A->B.key` before `key`; the first key that is there in either form."""
        return self.settings.first(*(form for key in keys for form in (f"{source}->{target}.{key}", key)))


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


def settings_of(found: Iterable[Setting | None]) -> tuple[Setting, ...]:
    return tuple(dict.fromkeys(each for each in found if each))
