"""notebooks/inspect.ipynb runs from its first cell to its last on what a relay left behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from harness import Flow, Records
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from mirrorlake import inspection
from mirrorlake.tables import FolderTables
from mirrorlake.world import connect

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "inspect.ipynb"


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    assert cells
    assert [cell.id for cell in cells if cell.outputs or cell.execution_count] == []


def this_interpreter(folder: Path, environment: Mapping[str, str]) -> AsyncKernelManager:
    """A kernel `python3` that is the interpreter of the tests, whatever kernels the machine has."""
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "env": {"IPYTHONDIR": str(folder / "ipython"), **environment},
    }
    (folder / "python3").mkdir(parents=True)
    (folder / "python3" / "kernel.json").write_text(json.dumps(spec))
    manager = KernelSpecManager(kernel_dirs=[str(folder)])
    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=manager)


def execute(folder: Path, environment: Mapping[str, str]) -> list[Any]:
    """The cells with their outputs; an error in one fails the test."""
    notebook = nbformat.read(NOTEBOOK, 4)
    client = NotebookClient(
        notebook,
        km=this_interpreter(folder, environment),
        timeout=180,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    )
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(cells: list[Any], kind: str) -> list[str]:
    return [output.data[kind] for cell in cells for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.slow
def test_the_notebook_shows_what_a_relay_left(
    make_flow: Callable[..., Flow], records: Records, topic: str, tmp_path: Path
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(300, 2))
    flow = make_flow([topic])
    flow.runner["driver_memory"] = "1g"
    flow.run_once()
    records.send("source", topic, records.numbered(50, 2, first=300))
    config = flow.config()
    inspection.sample_lag(config, FolderTables(flow.root), connect(config, list(config.flows.values())))

    environment = {"MIRRORLAKE_CONFIG": str(flow.path), "MIRRORLAKE_ROOT": str(flow.root), "MIRRORLAKE_TABLE": ""}
    cells = execute(tmp_path / "kernels", environment)

    assert [output for cell in cells for output in cell.outputs if output.output_type == "error"] == []
    pages = outputs(cells, "text/html")
    (lag,) = [page for page in pages if "ingest_lag_records" in page]
    assert lag.count("<td>25</td>") == 4  # behind on both partitions, to bronze and to the target
    (head,) = [page for page in pages if "value_bytes" in page]
    assert "value-0" in head or "value-1" in head
    assert any("never ran" not in page and "stopped" in page for page in pages)
    assert any("target_last" in page and f"source.{topic}" in page for page in pages)
    assert len(outputs(cells, "image/png")) == 3
