"""Errors keep what they are on the way to the driver."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlake import errors
from mirrorlake.errors import (
    DeliveryDoubt,
    MirrorlakeError,
    Transient,
    from_text,
)


def all_errors(kind: type[MirrorlakeError] = MirrorlakeError) -> list[type[MirrorlakeError]]:
    below = [found for child in kind.__subclasses__() for found in all_errors(child)]
    return sorted({kind, *below}, key=lambda k: k.__name__)


@pytest.mark.parametrize("kind", [k for k in all_errors() if k.__module__ == errors.__name__], ids=lambda k: k.__name__)
@pytest.mark.parametrize("next_step", ["", "do this: now"])
def test_an_error_keeps_its_kind_and_words_on_the_way_to_the_driver(kind: Any, next_step: str) -> None:
    error = kind("it: broke\nbadly", next_step)
    back = from_text(f"{kind.__name__}: {error}")
    assert type(back) is kind
    assert (back.what, back.next_step) == (error.what, error.next_step)


@pytest.mark.parametrize("text", ["", "gibberish", "ValueError: x", "dataclass: x", "Fault: x"])
def test_an_error_of_unknown_kind_is_doubt(text: str) -> None:
    assert isinstance(from_text(text), DeliveryDoubt)
    assert isinstance(from_text(text), Transient)
