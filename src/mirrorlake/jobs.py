"""Entry points of the Databricks bundle: the same verbs as the command line, with the runtime's Spark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mirrorlake.config import Config, Storage
from mirrorlake.files import load_any
from mirrorlake.runner import Run


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="relay_job", description="Run the flows of a configuration.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--volume", required=True)
    return parser.parse_args(arguments)


def on_databricks(config: Config, catalog: str, volume: str) -> Config:
    """The bundle's catalog and volume in place of a folder."""
    values = config.storage.model_dump() | {"root": None, "catalog": catalog, "volume": volume}
    return config.model_copy(update={"storage": Storage(**values)})


def read_config(arguments: Sequence[str] | None) -> Config:
    """Any of the three formats; what of an MM2 file is not taken goes to the job's output."""
    asked = parse_arguments(arguments)
    loaded = load_any(asked.config)
    for warning in loaded.warnings():
        print(warning)
    return on_databricks(loaded.config, asked.catalog, asked.volume)


def relay_job(arguments: Sequence[str] | None = None) -> None:
    from pyspark.sql import SparkSession

    config = read_config(arguments)
    spark = SparkSession.builder.getOrCreate()
    Run(config, say=print, spark=spark)()
