"""Jars are fetched once, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from mirrorlake import jars, session
from mirrorlake.errors import Unreachable, UsageFault

TWO = jars.Bundle("two", ("org.example:one:1.0", "org.example:two:2.0"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORLAKE_JARS", str(tmp_path))
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without PySpark whose `mvn` writes two small jars, and a line for each call."""
    tools = tmp_path / "tools"
    tools.mkdir()
    calls = tools / "calls"
    calls.touch()
    script = f"""#!{sys.executable}
import pathlib, sys, time
with open({str(calls)!r}, "a") as calls: calls.write("called\\n")
time.sleep(0.2)
out = next(a.partition("=")[2] for a in sys.argv if a.startswith("-DoutputDirectory="))
for name in ("one-1.0.jar", "two-2.0.jar"): (pathlib.Path(out) / name).write_text(name)
"""
    _install(tools / "mvn", script)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return calls


@pytest.fixture
def failing_ivy(fake_maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """PySpark beside that `mvn`; its Ivy leaves half of its work and fails."""
    script = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.15"' >&2; exit 0; fi
for word; do out=$word; done
echo stale > "${out%/*}/one-0.9.jar"
echo UNRESOLVED by ivy; exit 1
"""
    (tmp_path / "tools" / "bin").mkdir()
    _install(tmp_path / "tools" / "bin" / "java", script)
    (tmp_path / "tools" / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "tools" / "pyspark" / "jars" / "ivy-2.5.3.jar").touch()
    spec = ModuleSpec("pyspark", None, origin=str(tmp_path / "tools" / "pyspark" / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "tools"))
    jars.java.cache_clear()
    yield fake_maven
    jars.java.cache_clear()


def _install(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


def test_jars_are_fetched_once_and_listed_with_their_hashes(cache: Path, fake_maven: Path, said: list[str]) -> None:
    first = jars.resolve(TWO, said.append)
    again = jars.resolve(TWO, said.append)
    assert [jar.name for jar in first] == ["one-1.0.jar", "two-2.0.jar"]
    assert first == again
    assert fake_maven.read_text().count("called") == 1
    listing = (first[0].parent / jars.COMPLETE).read_text()
    assert f"{hashlib.sha256(b'one-1.0.jar').hexdigest()} 11 one-1.0.jar" in listing
    assert "fetching the two jars" in said[0]


@pytest.mark.parametrize("damage", [Path.unlink, lambda jar: jar.write_text("cut")], ids=["missing", "cut short"])
def test_damaged_jars_are_fetched_again(cache: Path, fake_maven: Path, said: list[str], damage) -> None:  # type: ignore[no-untyped-def]
    damage(jars.resolve(TWO, said.append)[1])
    assert jars.resolve(TWO, said.append)[1].read_text() == "two-2.0.jar"
    assert fake_maven.read_text().count("called") == 2


def test_two_at_once_fetch_once(cache: Path, fake_maven: Path, said: list[str]) -> None:
    threads = [threading.Thread(target=jars.resolve, args=(TWO, said.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake_maven.read_text().count("called") == 1


def test_other_coordinates_get_another_folder(cache: Path, fake_maven: Path, said: list[str]) -> None:
    newer = jars.Bundle("two", ("org.example:one:1.1",))
    assert jars.resolve(TWO, said.append)[0].parent != jars.resolve(newer, said.append)[0].parent


def test_a_failed_fetch_says_why_and_leaves_nothing(cache: Path, fake_maven: Path, said: list[str]) -> None:
    _install(cache / "tools" / "mvn", "#!/bin/sh\necho UNRESOLVED org.example:one; exit 1\n")
    with pytest.raises(Unreachable, match=r"UNRESOLVED org\.example:one") as fault:
        jars.resolve(TWO, said.append)
    assert "MIRRORLAKE_JARS" in fault.value.next_step
    assert sorted(path.name for path in cache.iterdir()) == ["lock", "tools"]


def test_where_ivy_fails_maven_is_tried_from_an_empty_folder(cache: Path, failing_ivy: Path, said: list[str]) -> None:
    assert [jar.name for jar in jars.resolve(TWO, said.append)] == ["one-1.0.jar", "two-2.0.jar"]
    assert failing_ivy.read_text().count("called") == 1
    assert said[1] == "Ivy said last:\nUNRESOLVED by ivy\nmvn tries next"


def test_where_both_fail_both_are_heard(cache: Path, failing_ivy: Path, said: list[str]) -> None:
    _install(cache / "tools" / "mvn", "#!/bin/sh\necho no way; exit 1\n")
    with pytest.raises(Unreachable) as fault:
        jars.resolve(TWO, said.append)
    assert fault.value.what.endswith("; Ivy said last:\nUNRESOLVED by ivy\nmvn said last:\nno way")


def test_where_ivy_fails_and_there_is_no_maven_it_is_heard(cache: Path, failing_ivy: Path, said: list[str]) -> None:
    (cache / "tools" / "mvn").unlink()
    with pytest.raises(Unreachable) as fault:
        jars.resolve(TWO, said.append)
    assert fault.value.what.endswith("; Ivy said last:\nUNRESOLVED by ivy")


def test_make_jars_fetches_those_of_spark_and_of_the_brokers(
    cache: Path, fake_maven: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jars.main() == 0
    folders = [line for line in capsys.readouterr().out.splitlines() if line.startswith("/")]
    assert folders == [str(jars._folder(bundle)) for bundle in (jars.SPARK, jars.BROKER)]
    _install(cache / "tools" / "mvn", "#!/bin/sh\nexit 1\n")
    shutil.rmtree(jars._folder(jars.SPARK))
    assert jars.main() == 3
    assert "next: check that this machine reaches" in capsys.readouterr().err


def test_without_ivy_and_maven_the_message_says_what_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageFault, match="neither PySpark"):
        jars.resolve(TWO, said.append)


def test_ivy_is_told_what_to_take_and_what_to_leave_out() -> None:
    module = ElementTree.fromstring(jars.ivy_module("spark", jars.SPARK.coordinates, ["scala-library"]))  # noqa: S314
    taken = {(d.get("name"), d.get("rev")) for d in module.iter("dependency")}
    assert ("kafka-clients", "3.9.2") in taken
    assert len(taken) == len(jars.SPARK.coordinates)
    assert [e.get("module") for e in module.iter("exclude")] == ["scala-library"]


def test_artifact_names_are_told_from_versions() -> None:
    names = {
        "scala-library-2.13.16.jar": "scala-library",
        "spark-tags_2.13-4.0.0.jar": "spark-tags_2.13",
        "log4j-1.2-api-2.24.3.jar": "log4j-1.2-api",
        "zstd-jni-1.5.6-9.jar": "zstd-jni",
        "netty-epoll-4.1.118.Final-linux-x86_64.jar": "netty-epoll",
    }
    for name, artifact in names.items():
        match = jars.JAR_NAME.fullmatch(name)
        assert match is not None
        assert match["artifact"] == artifact


@pytest.fixture(
    params=[
        ("1.8.0_402", 8, False),
        ("11.0.22", 11, False),
        ("17.0.15", 17, True),
        ("21", 21, True),
        ("22.0.2", 22, True),
        ("23-ea", 23, False),
        ("25.0.1", 25, False),
    ],
    ids=lambda param: param[0],
)
def some_java(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, int, bool]]:
    """A `java` in JAVA_HOME, its release, and whether we run on it."""
    version, release, accepted = request.param
    found = tmp_path / "bin" / "java"
    found.parent.mkdir()
    _install(found, f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    jars.java.cache_clear()
    yield found, release, accepted
    jars.java.cache_clear()


NEEDED = r"is Java {}; 17 or newer is needed, and older than 23"


def test_java_must_be_new_enough(some_java: tuple[Path, int, bool]) -> None:
    found, release, accepted = some_java
    if accepted:
        assert jars.java() == found
    else:
        with pytest.raises(UsageFault, match=re.escape(f"{found} {NEEDED.format(release)}")) as fault:
            jars.java()
        assert fault.value.next_step == "apt-get install -y openjdk-17-jre-headless"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_takes_the_same_java_and_says_the_same(some_java: tuple[Path, int, bool]) -> None:
    found, release, accepted = some_java
    done = subprocess.run(["make", "java"], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == accepted
    if not accepted:
        assert f"{found} {NEEDED.format(release)}" in done.stderr
        assert jars.INSTALL_JAVA in done.stderr


def test_a_missing_java_is_a_fault_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    jars.java.cache_clear()
    with pytest.raises(UsageFault, match="no java in PATH") as fault:
        jars.java()
    assert fault.value.next_step == jars.INSTALL_JAVA
    jars.java.cache_clear()


def test_without_pyspark_a_session_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(UsageFault, match="PySpark is not installed") as fault:
        session.start({}, tmp_path)
    assert fault.value.next_step == "pip install 'mirrorlake[local]'"
