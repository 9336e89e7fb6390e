"""A module imports only what stands before it in `mirrorlake.READING_ORDER`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mirrorlake
from mirrorlake import READING_ORDER

PACKAGE = Path(mirrorlake.__file__).parent
# Where programs begin: nothing imports them, they may import everything.
ENTRY_POINTS = {"daemon", "demo", "jobs", "__main__"}


def module_files(package: Path) -> dict[str, list[Path]]:
    """The files of each module: one, or all those of a folder with that name."""
    files: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).with_suffix("").parts[0]
        if name != "__init__":
            files.setdefault(name, []).append(path)
    return files


def package_of(path: Path, package: Path) -> list[str]:
    """The dotted name, in parts, of the package that a file's relative imports start from."""
    return [package.name, *path.relative_to(package).parent.parts]


def dotted_imports(tree: ast.AST, inside: list[str]) -> Iterator[list[str]]:
    """Every imported name in parts, anywhere in the file; `from a import b` may mean the module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield from ([*base, alias.name] for alias in node.names)


def imported_modules(path: Path, package: Path) -> set[str]:
    """Which modules of the package a file imports."""
    modules = set(module_files(package)) | set(READING_ORDER)
    parts = dotted_imports(ast.parse(path.read_text()), package_of(path, package))
    return {p[1] for p in parts if p[0] == package.name and len(p) > 1 and p[1] in modules}


def out_of_order(package: Path) -> list[str]:
    """One line for each import of something later, or of an entry point."""
    faults = []
    for name, paths in module_files(package).items():
        if name in ENTRY_POINTS or name not in READING_ORDER:
            continue
        allowed = {name, *READING_ORDER[: READING_ORDER.index(name)]}
        for path in paths:
            later = sorted(imported_modules(path, package) - allowed)
            faults += [f"{path.relative_to(package)} imports {module}" for module in later]
    return faults


def test_every_module_is_in_the_reading_order_or_is_an_entry_point() -> None:
    assert set(module_files(PACKAGE)) - set(READING_ORDER) - ENTRY_POINTS == set()


def test_no_module_stands_in_the_reading_order_twice() -> None:
    assert len(READING_ORDER) == len(set(READING_ORDER))


def test_modules_import_only_what_stands_before_them() -> None:
    assert out_of_order(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        pytest.param("errors.py", "from mirrorlake.cli import main", id="a later module"),
        pytest.param("errors.py", "import mirrorlake.cli as c", id="by its dotted name"),
        pytest.param("errors.py", "from mirrorlake import cli", id="from the package"),
        pytest.param("errors.py", "from . import cli", id="relative"),
        pytest.param("errors.py", "from .cli import main", id="relative to the module"),
        pytest.param("errors.py", "def f():\n    from mirrorlake import cli", id="inside a function"),
        pytest.param("lab/broker.py", "from ..cli import main", id="from within a folder"),
        pytest.param("lab/broker.py", "from .. import cli", id="from within a folder, the package"),
        pytest.param("cli.py", "from mirrorlake.jobs import relay_job", id="an entry point"),
    ],
)
def test_an_import_out_of_order_is_caught(tmp_path: Path, file: str, source: str) -> None:
    package = write_package(tmp_path, file, source)
    assert len(out_of_order(package)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        pytest.param("cli.py", "from mirrorlake import errors, __version__", id="an earlier module"),
        pytest.param("lab/broker.py", "from . import client\nfrom .client import x", id="its own folder"),
        pytest.param("jobs.py", "from mirrorlake import cli", id="an entry point imports anything"),
        pytest.param("errors.py", "import json, cli", id="another package"),
    ],
)
def test_an_import_in_order_is_let_through(tmp_path: Path, file: str, source: str) -> None:
    package = write_package(tmp_path, file, source)
    assert out_of_order(package) == []


def write_package(folder: Path, file: str, source: str) -> Path:
    package = folder / "mirrorlake"
    for name in ("__init__.py", "errors.py", "cli.py", "jobs.py", "lab/__init__.py", "lab/client.py", file):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source if name == file else "")
    return package
