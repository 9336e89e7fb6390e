"""docs/commands.md holds every command and option, and each says what it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mirrorlake.cli import app

TEXT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below, by its full name."""
    for name, below in getattr(command, "commands", {}).items():
        yield " ".join((*path, name)), below
        yield from commands(below, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option"
]


def section(page: str, command: str) -> str:
    """What stands below the heading that names a command, down to the next heading."""
    heading = re.compile(rf"^#+ (?:[^\n]* and )?{re.escape(command)}(?: and [^\n]*)?\n(.*?)(?=^#|\Z)", re.M | re.S)
    found = heading.search(page)
    return found[1] if found else ""


def undocumented(page: str, command: str, names: list[str]) -> list[str]:
    return [name for name in names if f"`{name}`" not in section(page, command)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_on_the_page_and_has_help(command: str) -> None:
    assert section(TEXT, command)
    assert COMMANDS[command].help


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda value: getattr(value, "name", value))
def test_every_option_is_on_the_page_and_has_help(command: str, option: Any) -> None:
    assert undocumented(TEXT, command, option.opts) == []
    assert option.help


ARGUMENTS = [
    (name, argument)
    for name, command in COMMANDS.items()
    for argument in command.params
    if argument.param_type_name == "argument"
]


@pytest.mark.parametrize(("command", "argument"), ARGUMENTS, ids=lambda value: getattr(value, "name", value))
def test_every_argument_has_help(command: str, argument: Any) -> None:
    assert argument.help, command


def test_options_before_the_command_are_on_the_page() -> None:
    common = typer.main.get_command(app).params
    assert undocumented(TEXT, "Common options", [name for option in common for name in option.opts]) == []


def test_the_page_names_no_option_that_is_gone() -> None:
    known = {name for _, option in OPTIONS for name in option.opts} | {"--debug", "-h", "--help"}
    assert set(re.findall(r"`(--?[a-z][a-z-]*)`", TEXT)) - known == set()


def test_a_missing_option_is_caught() -> None:
    page = "# Commands\n\n## run\n\n| `--once` | |\n\n## lag\n\n| `--json` | |\n"
    assert undocumented(page, "run", ["--once", "--json"]) == ["--json"]
    assert undocumented(page, "plan", ["--json"]) == ["--json"]
