"""The Java side: which jars are needed, where they are kept, how they come here.

A bundle is resolved once per machine, by the Ivy that PySpark ships or, where that is missing or fails, by Maven,
into a folder named after its coordinates. The folder appears by a rename, so it is either whole or absent; its
`.complete` lists every jar with SHA-256 and size, and each use compares names and sizes with what is on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from xml.sax.saxutils import quoteattr

from mirrorlake.errors import MirrorlakeError, Unreachable, UsageFault

OLDEST_JAVA = 17
# From here on Java refuses what Hadoop in Spark 4.0 asks at start (`Subject.getSubject`). Makefile: the same bounds.
TOO_NEW_JAVA = 23
INSTALL_JAVA = "apt-get install -y openjdk-17-jre-headless"
COMPLETE = ".complete"
# A version begins with a digit; after a dash it goes on with one number and then words (1.5.6-9, 33.3.1-jre).
JAR_NAME = re.compile(r"(?P<artifact>.+?)-\d[\w.]*(-\d[\w.]*)?(-[A-Za-z][\w.]*)*\.jar")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bundle:
    """Jars that are used together: `organisation:artifact:revision` each, dependencies come along."""

    name: str
    coordinates: tuple[str, ...]
    beside_spark: bool = False  # leave out whatever Spark itself puts on the class path


SPARK = Bundle(
    "spark",
    (
        "io.delta:delta-spark_2.13:4.0.1",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",  # named here so that it wins over Spark's own choice
    ),
    beside_spark=True,
)
BROKER = Bundle(
    "broker",
    (
        "org.apache.kafka:kafka_2.13:4.1.1",
        # Kafka's poms bring log4j's core but not its slf4j binding: without it a broker logs nothing.
        "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    ),
)
OLD_BROKER = Bundle("old-broker", ("org.apache.kafka:kafka_2.13:3.3.2", "org.slf4j:slf4j-reload4j:1.7.36"))
"""The oldest release whose brokers run without ZooKeeper for good."""
MM2 = Bundle(
    "mm2",
    (
        "org.apache.kafka:connect-mirror:4.1.1",
        "org.apache.kafka:connect-runtime:4.1.1",
        "org.apache.kafka:kafka-tools:4.1.1",
        *BROKER.coordinates,
    ),
)


@lru_cache(maxsize=1)
def java() -> Path:
    """The `java` of JAVA_HOME, else of PATH, of a release that Kafka and Spark run on."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise UsageFault(f"no java in {f'JAVA_HOME ({home})' if home else 'PATH'}", INSTALL_JAVA)
    if not OLDEST_JAVA <= (release := _java_release(Path(found))) < TOO_NEW_JAVA:
        raise UsageFault(
            f"{found} is Java {release}; {OLDEST_JAVA} or newer is needed, and older than {TOO_NEW_JAVA}", INSTALL_JAVA
        )
    return Path(found)


def resolve(bundle: Bundle, say: Say) -> tuple[Path, ...]:
    """The jars of a bundle, fetched on first use."""
    folder = _folder(bundle)
    if jars := _listed(folder):
        return jars
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.parent / "lock", say):
        # Another process may have fetched them while we waited.
        return _listed(folder) or _fetch(bundle, folder, say)


def class_path(jars: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, jars))


def java_version() -> str:
    """As it calls itself: 17.0.15."""
    return _version_of(java())


def _java_release(executable: Path) -> int:
    return int(re.split(r"[._-]", _version_of(executable).removeprefix("1."))[0])


@lru_cache(maxsize=1)
def _version_of(executable: Path) -> str:
    said = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d[^"]*)"', said)
    if found is None:
        raise UsageFault(f"{executable} does not say its version: {said.strip()[-200:]}", INSTALL_JAVA)
    return found[1]


# -- where they are kept


def cache() -> Path:
    return Path(os.environ.get("MIRRORLAKE_JARS") or Path.home() / ".cache/mirrorlake/jars")


def _folder(bundle: Bundle) -> Path:
    decides = "\n".join([*bundle.coordinates, *_left_out(bundle)])
    return cache() / f"{bundle.name}-{hashlib.sha256(decides.encode()).hexdigest()[:12]}"


def _left_out(bundle: Bundle) -> list[str]:
    """Artifacts that Spark ships: a second copy on the class path would shadow or clash."""
    if not bundle.beside_spark:
        return []
    return sorted({match["artifact"] for jar in spark_jars() if (match := JAR_NAME.fullmatch(jar.name))})


def spark_jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    return sorted(Path(spec.origin).parent.glob("jars/*.jar")) if spec and spec.origin else []


def _listed(folder: Path) -> tuple[Path, ...]:
    """The jars that the listing names, or none where any of them is missing or cut short."""
    try:
        rows = [line.split(maxsplit=2) for line in (folder / COMPLETE).read_text().splitlines()]
        whole = all((folder / name).stat().st_size == int(size) for _, size, name in rows)
    except FileNotFoundError:
        return ()
    return tuple(folder / name for _, _, name in rows) if whole else ()


def _listing(folder: Path) -> str:
    jars = sorted(folder.glob("*.jar"))
    return "".join(f"{_sha256(jar)} {jar.stat().st_size} {jar.name}\n" for jar in jars)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def alone(lock_file: Path, say: Say) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process at work in {lock_file.parent}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- how they come here


def _fetch(bundle: Bundle, folder: Path, say: Say) -> tuple[Path, ...]:
    """Resolve into a temporary folder, list it, and move it into place in one step."""
    say(f"fetching the {bundle.name} jars ({', '.join(bundle.coordinates)}); once per machine, about a minute")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as made:
        jars = Path(made) / "jars"
        jars.mkdir()
        _fill(jars, _resolvers(bundle, Path(made), jars), bundle, say)
        (jars / COMPLETE).write_text(_listing(jars))
        shutil.rmtree(folder, ignore_errors=True)  # an earlier one that was found damaged
        jars.rename(folder)
    found = _listed(folder)
    say(f"{len(found)} {bundle.name} jars are in {folder}")
    return found


def _resolvers(bundle: Bundle, work: Path, jars: Path) -> dict[str, list[str]]:
    """The commands that can fill `jars`, by name: Ivy where PySpark is installed, then Maven where it is."""
    found: dict[str, list[str]] = {}
    if ivy := next((jar for jar in spark_jars() if jar.name.startswith("ivy-")), None):
        (work / "ivy.xml").write_text(ivy_module(bundle.name, bundle.coordinates, _left_out(bundle)))
        found["Ivy"] = _ivy_command(ivy, work, jars)
    if maven := shutil.which("mvn"):
        (work / "pom.xml").write_text(maven_project(bundle.name, bundle.coordinates))
        found["mvn"] = _maven_command(maven, work, jars, _left_out(bundle))
    if not found:
        raise UsageFault(
            "neither PySpark (whose Ivy fetches jars) nor mvn is installed", "pip install 'mirrorlake[local]'"
        )
    return found


def _ivy_command(ivy: Path, work: Path, jars: Path) -> list[str]:
    # Bundles overlap, so the download cache is shared and outlives the temporary folder.
    cache = work.parent / "ivy"
    pattern = f"{jars}/[artifact]-[revision].[ext]"
    return [str(java()), "-jar", str(ivy), "-ivy", str(work / "ivy.xml"), "-cache", str(cache),
            "-types", "jar", "bundle", "-retrieve", pattern]  # fmt: skip


def _maven_command(maven: str, work: Path, jars: Path, left_out: Iterable[str]) -> list[str]:
    return [maven, "-B", "-q", "-f", str(work / "pom.xml"), "dependency:copy-dependencies",
            f"-DoutputDirectory={jars}", "-DincludeScope=runtime",
            f"-DexcludeArtifactIds={','.join(left_out)}"]  # fmt: skip


def ivy_module(name: str, coordinates: Iterable[str], left_out: Iterable[str]) -> str:
    """An ivy.xml; `default->default` is Maven's runtime scope with the artifact itself."""
    wanted = "".join(
        f"<dependency org={quoteattr(org)} name={quoteattr(artifact)} rev={quoteattr(revision)}"
        ' conf="default->default"/>'
        for org, artifact, revision in _split(coordinates)
    )
    excluded = "".join(f"<exclude module={quoteattr(artifact)}/>" for artifact in left_out)
    return (
        f'<ivy-module version="2.0"><info organisation="mirrorlake" module={quoteattr(name)}/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}{excluded}</dependencies></ivy-module>"
    )


def maven_project(name: str, coordinates: Iterable[str]) -> str:
    wanted = "".join(
        f"<dependency><groupId>{org}</groupId><artifactId>{artifact}</artifactId><version>{revision}</version></dependency>"
        for org, artifact, revision in _split(coordinates)
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        f"<groupId>mirrorlake</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


def _split(coordinates: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for coordinate in coordinates:
        org, artifact, revision = coordinate.split(":")
        yield org, artifact, revision


def _fill(jars: Path, resolvers: Mapping[str, list[str]], bundle: Bundle, say: Say) -> None:
    """Run one resolver after the other, until one succeeds."""
    said: list[str] = []
    for name, command in resolvers.items():
        if said:
            say(f"{said[-1]}\n{name} tries next")
            _empty(jars)  # of what the one before left behind: its choice of versions may be another
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:
            return
        last = "\n".join(line for line in done.stdout.splitlines()[-20:] if line.strip())
        said.append(f"{name} said last:\n{last}")
    raise Unreachable(
        f"the {bundle.name} jars could not be fetched; " + "\n".join(said),
        "check that this machine reaches its Maven repository (proxy: JAVA_TOOL_OPTIONS), or copy"
        " the folder of a machine that has the jars and name it in MIRRORLAKE_JARS; then try again",
    )


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def main() -> int:
    """`make jars`: fetch what Spark and the lab's brokers need, and say where it is."""
    try:
        for bundle in (SPARK, BROKER):
            print(resolve(bundle, print)[0].parent)
    except MirrorlakeError as fault:
        print(f"{fault.what}\nnext: {fault.next_step}", file=sys.stderr)
        return fault.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
