"""The job's configuration: any format, on the bundle's catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake.jobs import read_config

PLACE = ("--catalog", "main", "--volume", "/Volumes/main/ops/state")
MM2 = """\
clusters = a, b
a.bootstrap.servers = a:9092
b.bootstrap.servers = b:9092
a->b.enabled = true
a->b.topics = orders
no.such.key = 1
"""


def test_a_job_takes_an_mm2_file_and_says_what_it_does_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(MM2)
    config = read_config(["--config", str(path), *PLACE])
    assert config.flows["a"].topics == ["orders"]
    assert (config.storage.catalog, config.storage.volume, config.storage.root) == ("main", PLACE[3], None)
    assert f"warning: {path}:6: no.such.key" in capsys.readouterr().out
