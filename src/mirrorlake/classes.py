"""The classes that Java loaded, kept from one start to the next.

Most of a start is Java reading and checking thousands of classes. A run that is asked to leaves them in an archive
beside the jars (`mirrorlake lab classes`), and Java maps it at every later start. An archive fits one Java and one
class path, which its name stands for; Java ignores one that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mirrorlake.jars import cache, java_version

UNUSED_DAYS = 30


def archive(class_path: Iterable[Path]) -> Path:
    """Where this Java's classes from these jars are kept."""
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in class_path]
    return cache() / "classes" / f"{hashlib.sha256(repr([java_version(), jars]).encode()).hexdigest()[:12]}.jsa"


def java_options(kept: Path, record: bool) -> str:
    """Begin with what is kept; where nothing is, note what is loaded, if asked to: that start is slower."""
    quiet = " -Xlog:cds*=off -Xlog:class+path=off"
    if not kept.exists():
        return " -XX:+RecordDynamicDumpInfo" + quiet if record else ""
    with contextlib.suppress(OSError):
        os.utime(kept)
    return f" -XX:SharedArchiveFile={kept}" + quiet


def keep(gateway: Any, kept: Path) -> None:
    """Have Java write its archive, which takes some seconds."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        made = Path(folder) / kept.name
        _dump(gateway, made)
        made.replace(kept)
    _forget_unused(kept.parent)


def _dump(gateway: Any, made: Path) -> None:
    """What `jcmd VM.cds dynamic_dump` does, where only a runtime is installed and there is no `jcmd`.

    The method is looked up on the interface: the class behind it is not open to callers.
    """

    def array(kind: Any, *items: Any) -> Any:
        filled = gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            filled[index] = item
        return filled

    jvm = gateway.jvm
    text, thing = jvm.java.lang.String, jvm.java.lang.Object
    classes = (jvm.java.lang.Class.forName(name) for name in _INVOKE)
    invoke = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethod(
        "invoke", array(jvm.java.lang.Class, *classes)
    )
    command = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    arguments = array(thing, array(text, "dynamic_dump", str(made)))
    jvm.java.lang.System.setOut(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))  # it would tell
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    invoke.invoke(server, array(thing, command, "vmCds", arguments, array(text, "[Ljava.lang.String;")))


_INVOKE = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")


def _forget_unused(folder: Path) -> None:
    for old in folder.glob("*.jsa"):
        if old.stat().st_mtime < time.time() - UNUSED_DAYS * 86_400:
            old.unlink(missing_ok=True)
