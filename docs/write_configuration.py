"""Writes the key tables of docs/configuration.md from the models: `python docs/write_configuration.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from mirrorlake.config import (
    AclSync,
    Cluster,
    Config,
    ConfigSync,
    Fanout,
    Flow,
    Groups,
    Heartbeats,
    Ingest,
    Model,
    Runner,
    Security,
    Storage,
    Target,
)

PAGE = Path(__file__).with_name("configuration.md")
MARK = "<!-- from here on written by docs/write_configuration.py -->\n"
FILLED_BY_US = {(Config, "path"), (Config, "others"), (Flow, "name")}
SECTIONS: dict[str, type[Model]] = {
    "Top level": Config,
    "storage": Storage,
    "clusters.ALIAS": Cluster,
    "clusters.ALIAS.security": Security,
    "flows.NAME": Flow,
    "flows.NAME.targets[]": Target,
    "flows.NAME.targets[].configs": ConfigSync,
    "flows.NAME.targets[].acls": AclSync,
    "flows.NAME.heartbeats": Heartbeats,
    "flows.NAME.targets[].groups": Groups,
    "flows.NAME.ingest": Ingest,
    "flows.NAME.fanout": Fanout,
    "runner": Runner,
}


def tables() -> str:
    return "\n".join(f"## {title}\n\n{table(model)}" for title, model in SECTIONS.items())


def table(model: type[Model]) -> str:
    rows = [row(name, field) for name, field in model.model_fields.items() if (model, name) not in FILLED_BY_US]
    return "| key | default | |\n|---|---|---|\n" + "".join(rows)


def row(name: str, field: FieldInfo) -> str:
    choices = ", ".join(f"`{choice}`" for choice in choices_of(field.annotation))
    described = " ".join((field.description or "").split())
    text = f"{described} Choices: {choices}." if choices else described
    return f"| `{name}` | {default_of(field)} | {text} |\n"


def choices_of(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in choices_of(part)]


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "**needed**"
    default = field.default
    if isinstance(default, Model) or default in (None, {}, []):
        return ""
    if isinstance(default, int) and not isinstance(default, bool) and default >= 1 << 20 and default % (1 << 20) == 0:
        return f"`{default >> 20}MiB`"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def page() -> str:
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + tables()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
