"""docs/configuration.md holds every key."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mirrorlake.config import Config, Model, Storage, models_in

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "configuration.md").read_text(encoding="utf-8")


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_configuration", DOCS / "write_configuration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def models(model: type[Model] = Config) -> set[type[Model]]:
    below = [part for field in model.model_fields.values() for part in models_in(field.annotation)]
    return {model}.union(*(models(part) for part in below))


def test_the_page_is_what_the_models_say() -> None:
    assert writer().page() == TEXT, "run: python docs/write_configuration.py"


def test_every_model_has_its_table() -> None:
    assert set(writer().SECTIONS.values()) == models()


def test_a_description_of_two_lines_is_one_row() -> None:
    field = Storage.model_fields["checkpoints"]
    assert "\n" in (field.description or "")
    assert writer().row("checkpoints", field).count("\n") == 1


@pytest.mark.parametrize(
    ("model", "key"), sorted(((m, key) for m in models() for key in m.model_fields), key=str), ids=str
)
def test_every_key_is_described_and_on_the_page(model: type[Model], key: str) -> None:
    description = model.model_fields[key].description
    assert description
    assert description.endswith(".")
    if (model, key) not in writer().FILLED_BY_US:
        assert f"| `{key}` |" in TEXT
