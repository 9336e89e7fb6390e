"""A flow whose tables are in a catalog, and a runner of it in a process of its own: `governed.py CONFIG SCHEMA FOLDER`.

Spark's own catalog ends with its process. So the schema has a folder, and each process is told what lies there, as a
metastore would tell it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import Command
from pyspark.sql import SparkSession

from mirrorlake.cli import stop_on_signals
from mirrorlake.config import Config, load
from mirrorlake.errors import MirrorlakeError
from mirrorlake.runner import Run
from mirrorlake.world import spark_session, storage_root

CATALOG = "spark_catalog"


def in_catalog(config: Config, schema: str, volume: Path) -> Config:
    places = {"root": None, "catalog": CATALOG, "volume": str(volume)}
    names = {"bronze": schema + ".{source}__{topic}", "ops_schema": schema}
    # Copied, not parsed: there is no /Volumes here.
    return config.model_copy(update={"storage": config.storage.model_copy(update=places | names)})


def register(spark: SparkSession, schema: str, folder: Path) -> None:
    """What the folder holds by now, under its names."""
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema} LOCATION '{folder}'")
    for log in sorted(folder.glob("*/_delta_log")):
        name = f"{schema}.{log.parent.name}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{log.parent}'")


def start(output: Path, config: Path, schema: str, folder: Path, **environment: str) -> Command:
    """It leads a session, to which all that it starts belongs."""
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, str(config), schema, str(folder)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    return Command(process, output)


def members(session: int) -> list[int]:
    """The processes of a session: Spark's Python workers leave the group of the one that started them."""
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if _session(pid) == session]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def stands_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def main(path: str, schema: str, folder: str) -> int:
    config = in_catalog(load(Path(path)), schema, Path(folder) / "volume")
    spark = spark_session(config, storage_root(config))
    register(spark, schema, Path(folder) / "tables")
    running = Run(config, say=print, spark=spark)
    stop_on_signals(running.stopping.set)
    try:
        running()
    except MirrorlakeError as fault:
        print(fault)
        return fault.exit_code
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
