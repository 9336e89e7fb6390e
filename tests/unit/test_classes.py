"""The archive of Java's classes: which one fits, and when it is used. Java itself: tests/broker/test_quick_start.py."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mirrorlake import classes


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORLAKE_JARS", str(tmp_path))
    monkeypatch.setattr(classes, "java_version", lambda: "17.0.15")
    path = tmp_path / "some.jar"
    path.write_text("content")
    return path


def test_an_archive_fits_one_java_and_one_class_path(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = classes.archive([jar])
    assert classes.archive([jar]) == kept
    os.utime(jar, (1, 1))
    another_time = classes.archive([jar])
    jar.write_text("more content")
    another_size = classes.archive([jar])
    monkeypatch.setattr(classes, "java_version", lambda: "21.0.1")
    assert len({kept, another_time, another_size, classes.archive([jar]), classes.archive([jar, jar])}) == 5


def test_a_start_without_an_archive_is_a_plain_one_unless_it_is_to_be_recorded(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsa"
    assert classes.java_options(missing, record=False) == ""
    assert "RecordDynamicDumpInfo" in classes.java_options(missing, record=True)


def test_a_start_with_an_archive_uses_it_and_records_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsa"
    kept.touch()
    for record in (False, True):
        options = classes.java_options(kept, record)
        assert f"-XX:SharedArchiveFile={kept}" in options
        assert "Record" not in options


def test_archives_that_no_start_used_for_a_month_go(tmp_path: Path) -> None:
    unused, used = tmp_path / "unused.jsa", tmp_path / "used.jsa"
    for path in (unused, used):
        path.touch()
        os.utime(path, (time.time() - 40 * 86_400,) * 2)
    classes.java_options(used, record=False)
    classes._forget_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["used.jsa"]
