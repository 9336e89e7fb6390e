"""Jars are fetched once, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import xml.etree.ElementTree as ElementTree
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


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        ('openjdk version "17.0.15"', True),
        ('openjdk version "21"', True),
        ('java version "1.8.0_402"', False),
    ],
)
def test_java_must_be_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, accepted: bool) -> None:
    (tmp_path / "bin").mkdir()
    _install(tmp_path / "bin" / "java", f"#!/bin/sh\necho '{version}' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    jars.java.cache_clear()
    if accepted:
        assert jars.java() == tmp_path / "bin" / "java"
    else:
        with pytest.raises(UsageFault, match=r"is Java 8; 17 or newer") as fault:
            jars.java()
        assert fault.value.next_step == "apt-get install -y openjdk-17-jre-headless"
    jars.java.cache_clear()


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
