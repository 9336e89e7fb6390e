"""A benchmark's results in MLflow, where they stay comparable from run to run."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mirrorlake.bench.results import from_json, rounds_of
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
    """Parameters, versions, every median with its spread and the files of `folder`; the run's id."""
    # A folder does for one machine's results; MLflow would rather have a database, and asks to be told.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow as client

    client.set_tracking_uri(store)
    client.set_experiment(EXPERIMENT)
    with client.start_run() as run:
        client.log_params(parameters(document))
        for part in ("median", "least", "most"):  # a request holds a thousand at most
            client.log_metrics(metrics(document, part))
        for path in sorted(filter(Path.is_file, folder.iterdir())):  # the store itself may be a folder in here
            client.log_artifact(str(path))
        return str(run.info.run_id)


def parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    """What was run, and how; a contender's settings and a scenario's parameters are a line each."""
    scenarios = {name: measured.scenario for name, measured in from_json(document).items()}
    run = {key: document.get(key) for key in ("at", "command", "commit", "quick", "took_seconds")}
    return {
        **document["machine"],
        **document["versions"],
        **run,
        "rounds": " or ".join(map(str, rounds_of(document))),
        "records": scenarios.get("base", {}).get("records"),
        **{f"settings/{name}": _line(settings) for name, settings in document["settings"].items()},
        **{f"scenario/{_named(name)}": _line(scenario) for name, scenario in scenarios.items()},
    }


def _line(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def metrics(document: Mapping[str, Any], part: str = "median") -> dict[str, float]:
    """`scenario/contender/figure`, with `.least` or `.most` for the spread."""
    found = {}
    for name, measured in from_json(document).items():
        for contender in measured.contenders():
            for figure in measured.figures(contender):
                if spread := measured.spread(contender, figure):
                    key = f"{_named(name)}/{contender}/{figure}{'' if part == 'median' else f'.{part}'}"
                    found[key] = getattr(spread, part)
    return found


def _named(scenario: str) -> str:
    """In the letters that MLflow allows."""
    return re.sub("[^A-Za-z0-9]+", "_", scenario)
