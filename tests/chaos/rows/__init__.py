"""The fault table as data: each row injects one fault into a running relay and checks what the promises say.

Numbers are those of the fault matrix that `docs/guarantees.md` shows. A row raises AssertionError where a promise
is broken, and NotHere where this machine lacks what it needs; what it returns is said beside its verdict. There is a
module for each kind of fault.
"""

from __future__ import annotations

import importlib

from rows.common import EQUAL, ROWS, Row, slug

__all__ = ["BY_SLUG", "EQUAL", "ROWS", "THEMES", "Row", "slug"]

THEMES = (
    "kills",
    "writers",
    "brokers",
    "networks",
    "source",
    "records",
    "access",
    "storage",
    "targets",
    "cuts",
    "existing",
)
"""In the order of the table: a module adds its rows as it is imported."""

for _theme in THEMES:
    importlib.import_module(f"rows.{_theme}")

BY_SLUG = {slug(f"{row.number} {row.name}"): row for row in ROWS}
