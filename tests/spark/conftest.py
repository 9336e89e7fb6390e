"""One Spark session, as the embedded default makes it, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirrorlake.config import parse
from mirrorlake.tables import FolderTables
from mirrorlake.world import spark_session

from .frames import CONFIG


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(parse(CONFIG, "spark"), tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def tables(tmp_path: Path) -> FolderTables:
    return FolderTables(tmp_path)
