"""A benchmark's results in MLflow, where they stay comparable from run to run."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mirrorlake.bench.results import from_json
from mirrorlake.errors import UsageFault

EXPERIMENT = "mirrorlake-bench"
DEFAULT_STORE = "mlruns"
INSTALL = "pip install 'mirrorlake[bench]'"


def usable(store: str, say: Callable[[str], None]) -> str:
    """The store, asked for before the first run; the default one may be missing, another must not."""
    if store and importlib.util.find_spec("mlflow") is None:
        if store != DEFAULT_STORE:
            raise UsageFault("MLflow is not installed", INSTALL)
        say(f"MLflow is not installed: nothing will be logged there; {INSTALL}")
        return ""
    return store


def track(document: Mapping[str, Any], folder: Path, store: str) -> str:
    """Parameters, versions, every median and the files of `folder`; the run's id."""
    # A folder does for one machine's results; MLflow would rather have a database, and asks to be told.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow as client

    client.set_tracking_uri(store)
    client.set_experiment(EXPERIMENT)
    with client.start_run() as run:
        client.log_params({**document["machine"], **document["versions"], "quick": document["quick"]})
        client.log_metrics(metrics(document))
        for path in sorted(filter(Path.is_file, folder.iterdir())):  # the store itself may be a folder in here
            client.log_artifact(str(path))
        return str(run.info.run_id)


def metrics(document: Mapping[str, Any]) -> dict[str, float]:
    """`scenario/contender/figure`, in the letters that MLflow allows."""
    found = {}
    for name, measured in from_json(document).items():
        for contender in measured.contenders():
            for figure in measured.figures(contender):
                if spread := measured.spread(contender, figure):
                    found[f"{re.sub('[^A-Za-z0-9]+', '_', name)}/{contender}/{figure}"] = spread.median
    return found
