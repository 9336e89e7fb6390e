"""Pictures of a benchmark: bars at the median, whiskers from the least to the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirrorlake.bench.results import Measured, Spread, from_json
from mirrorlake.bench.scenarios import CONTENDERS, FILL, LATENCY, THROUGHPUT
from mirrorlake.errors import UsageFault

COLOURS = dict(zip(CONTENDERS, ("#9aa5b1", "#52606d", "#323f4b", "#0b7285"), strict=True))
PICTURES = {
    "throughput.png": ("steady_records_per_second", "records/s, steady"),
    "cpu.png": ("steady_cpu_seconds_per_million", "CPU seconds per million records, steady"),
    "source-reads.png": ("source_bytes_per_record", "bytes read from the source per record"),
    "memory.png": ("peak_memory_mib", "peak memory, MiB"),
}
LATENCIES = {"p50": "latency_p50_seconds", "p99": "latency_p99_seconds", "max": "latency_max_seconds"}


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    measured = from_json(document)
    carried = [m for m in measured.values() if m.scenario["kind"] in (THROUGHPUT, FILL)]
    paced = [m for m in measured.values() if m.scenario["kind"] == LATENCY]
    paths = [_bars(_rows(carried, figure), title, folder / file) for file, (figure, title) in PICTURES.items()]
    if paced:
        rows = [
            (f"{m.name}\n{name}", {c: m.spread(c, figure) for c in m.contenders()})
            for m in paced
            for name, figure in LATENCIES.items()
        ]
        paths.append(_bars(rows, "latency, seconds", folder / "latency.png"))
    return paths


Row = tuple[str, Mapping[str, Spread | None]]


def _rows(measured: Sequence[Measured], figure: str) -> list[Row]:
    return [(m.name, {c: m.spread(c, figure) for c in m.contenders()}) for m in measured]


def _bars(rows: Sequence[Row], title: str, path: Path) -> Path:
    pyplot = _pyplot()
    shown, axes = pyplot.subplots(figsize=(1.6 + 1.3 * len(rows), 3.6))
    width = 0.8 / len(CONTENDERS)
    for place, contender in enumerate(CONTENDERS):
        found = [(n, spread) for n, (_, held) in enumerate(rows) if (spread := held.get(contender))]
        if not found:
            continue
        centres = [n + (place - (len(CONTENDERS) - 1) / 2) * width for n, _ in found]
        whiskers = [[s.median - s.least for _, s in found], [s.most - s.median for _, s in found]]
        heights = [s.median for _, s in found]
        axes.bar(centres, heights, width, yerr=whiskers, capsize=2, label=contender, color=COLOURS[contender])
    axes.set_xticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    shown.tight_layout()
    shown.savefig(path, dpi=110)
    pyplot.close(shown)
    return path


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UsageFault("plots need matplotlib", "pip install 'mirrorlake[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
