"""Keeps a benchmark's results: `python docs/write_performance.py [RESULTS_JSON]`.

Copies the results and their plots to benchmarks/results, fits the coefficients that `mirrorlake size` uses, and writes
the tables of docs/performance.md and the comparison in the README. Without an argument it writes all that anew from
the results that are kept. What benchmarks/scale_out.py left beside them goes on the page too.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from mirrorlake.bench import page, plots, sizing

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results" / "results.json"
SCALED = KEPT.with_name("scale_out.json")  # of benchmarks/scale_out.py
BEGIN, END = "<!-- from here on written by docs/write_performance.py -->\n", "<!-- to here -->\n"


def replaced(text: str, written: str) -> str:
    """The text with what stands between the marks written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{written}\n{END}{after}"


def pages(document: dict[str, Any]) -> dict[Path, str]:
    """Path -> what it should say."""
    performance, readme = ROOT / "docs" / "performance.md", ROOT / "README.md"
    pictures = "\n".join(
        f"![{path.stem}](../benchmarks/results/{path.name})" for path in sorted(KEPT.parent.glob("*.png"))
    )
    parts = [page.page(document), pictures]
    if SCALED.exists():
        parts.insert(1, page.scale_out(json.loads(SCALED.read_text()), document))
    return {
        performance: replaced(performance.read_text(), "\n".join(parts)),
        readme: replaced(readme.read_text(), page.readme(document)),
    }


def main() -> None:
    if len(sys.argv) > 1:
        KEPT.parent.mkdir(exist_ok=True)
        shutil.copyfile(sys.argv[1], KEPT)
    document = json.loads(KEPT.read_text())
    plots.draw(document, KEPT.parent)
    for path, text in pages(document).items():
        path.write_text(text)
    sizing.KEPT.write_text(json.dumps(sizing.fit(document).to_json(), indent=1) + "\n")


if __name__ == "__main__":
    main()
