"""The benchmark: figures from samples, medians and ratios, the page, the coefficients; and its instruments."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from mirrorlake.bench import measure, page, plots, scenarios, sizing, tracking
from mirrorlake.bench.benchmark import commit, describe
from mirrorlake.bench.commands import command_line, keep_coefficients, latency_cells, present, size_rows
from mirrorlake.bench.contenders import MM2_LAB, described
from mirrorlake.bench.delay import CHUNK_BYTES, serve
from mirrorlake.bench.measure import Sample, growth_figures, latency_figures, memory_of, throughput_figures
from mirrorlake.bench.processes import cpu_seconds_of, usage_of
from mirrorlake.bench.records import Values
from mirrorlake.bench.results import GOALS, Measured, Spread, from_json
from mirrorlake.bench.scenarios import FILL, GROWTH, IDLE, LATENCY, MIRRORLAKE, MM2_LZ4, MM2_TUNED, Scenario
from mirrorlake.cli import app
from mirrorlake.errors import UsageFault
from mirrorlake.lab.mm2 import mm2_properties
from mirrorlake.lab.settings import HOST, free_ports

ROOT = Path(__file__).parents[2]

# --- one run ---


def sample(seconds: float, delivered: int, cpu: float) -> Sample:
    return Sample(seconds, delivered, cpu, int(seconds) << 20, 5 * delivered, 10 + cpu)


def test_figures_tell_warm_from_overall() -> None:
    # 10 s of start, then 100 records/s while cold, 200 when warm.
    samples = [sample(0, 0, 0), sample(10, 0, 8), sample(13, 300, 11), sample(16.25, 950, 14), sample(16.5, 1000, 15)]
    found = throughput_figures(samples, 1000, 2000)
    assert found["first_record_seconds"] == pytest.approx(10.01)
    assert found["steady_records_per_second"] == pytest.approx(200)
    assert found["steady_mb_per_second"] == pytest.approx(0.4)
    assert found["records_per_second"] == pytest.approx(1000 / 16.5)
    assert found["steady_cpu_seconds_per_million"] == pytest.approx(3 / 650 * 1e6)
    assert found["cpu_seconds"] == 15
    assert found["cpu_seconds_per_million"] == pytest.approx(15_000)
    assert found["peak_memory_mib"] == 16
    assert found["written_bytes_per_record"] == 5


def test_late_records_count_in_latency() -> None:
    found = latency_figures([0.5] * 98 + [3.0, 9.0])
    assert found["latency_p50_seconds"] == 0.5
    assert found["latency_p99_seconds"] > 2.9
    assert found["latency_max_seconds"] == 9


SIZES = [250_000, 1_250_000, 2_500_000]


def growth(start: float, per_million: float, per_million_squared: float = 0) -> dict[str, float]:
    millions = [records / 1e6 for records in SIZES]
    return growth_figures(SIZES, [start + per_million * n + per_million_squared * n * n for n in millions])


def test_the_start_of_a_run_hides_no_growth() -> None:
    linear, square = growth(9, 12), growth(9, 12, 2)
    assert (linear["small_cpu_seconds"], linear["large_cpu_seconds"]) == (12, 39)
    assert linear["earlier_cpu_seconds_per_million"] == pytest.approx(12)
    assert linear["added_cpu_ratio"] == pytest.approx(1)
    assert linear["whole_cpu_ratio"] == pytest.approx(39 / 12)
    # Ten times the records for far less than ten times the CPU, start and all; yet each costs more than the one before.
    assert square["whole_cpu_ratio"] < 10
    assert square["added_cpu_ratio"] == pytest.approx((12 + 2 * 3.75) / (12 + 2 * 1.5))


def test_runs_that_cost_less_the_larger_they_are_say_nothing_of_what_one_more_costs() -> None:
    assert "added_cpu_ratio" not in growth(9, -1)


# --- many runs ---


def test_ratios_are_taken_within_a_round() -> None:
    rounds = [{MIRRORLAKE: {"x": 50.0}, MM2_TUNED: {"x": 100.0}}, {MIRRORLAKE: {"x": 10.0}, MM2_TUNED: {"x": 10.0}}]
    held = Measured({"name": "base"}, rounds)
    assert held.ratio("x") == Spread(0.75, 0.5, 1.0)
    assert held.spread(MIRRORLAKE, "x") == Spread(30, 10, 50)
    assert held.spread(MIRRORLAKE, "y") is None


def test_one_factor_is_varied_at_a_time() -> None:
    found = scenarios.full()
    base = asdict(found[0])
    factors = ("record_bytes", "partitions", "targets", "round_trip_ms")
    varied = {s.name: [f for f in factors if asdict(s)[f] != base[f]] for s in found if s.kind == scenarios.THROUGHPUT}
    assert sorted(map(len, varied.values())) == [0, 1, 1, 1, 1, 1, 1], "base, and the others"
    assert {name for goal in GOALS for name in (goal.scenario, goal.against) if name} <= {s.name for s in found}


@pytest.mark.parametrize("records", [10_000, 500_000, 2_000_000])
def test_growth_is_tenfold_by_way_of_half(records: int) -> None:
    grown = {s.name: s.steps for s in scenarios.full(records) if s.kind == GROWTH}
    by_records, by_partitions = grown[scenarios.MORE_RECORDS], grown[scenarios.MORE_PARTITIONS]
    most = min(5 * records, scenarios.GROWN_RECORDS)
    assert [s.records for s in by_records] == [s.records for s in by_partitions] == [most // 10, most // 2, most]
    assert [s.partitions for s in by_records] == [4, 4, 4]
    assert len({s.records / s.partitions for s in by_partitions}) == 1, "each is as full"
    assert all(s.kind == scenarios.THROUGHPUT and not s.steps for s in [*by_records, *by_partitions])
    assert not [s for s in scenarios.quick() if s.kind == GROWTH]


def test_results_say_what_was_asked_for() -> None:
    assert command_line(True, [], [], 3, 2_000_000) == "mirrorlake bench --quick"
    some = command_line(False, ["3 targets"], [MIRRORLAKE], 1, 50_000)
    assert some == "mirrorlake bench --rounds 1 --records 50000 --scenario '3 targets' --contender mirrorlake"


def test_rounds_are_those_asked_for_but_for_the_long_idle_one() -> None:
    assert {s.rounds for s in scenarios.full(rounds=3) if s.kind != IDLE} == {3}
    assert [s.rounds for s in scenarios.full(rounds=3) if s.kind == IDLE] == [2]
    assert {s.rounds for s in scenarios.full(rounds=1)} == {1}


def test_compressed_mm2_takes_part_at_the_full_base_only() -> None:
    everyone = [*scenarios.full(), *scenarios.quick()]
    assert [s.name for s in everyone if MM2_LZ4 in s.contenders] == ["base"]
    assert MM2_LZ4 in scenarios.full()[0].contenders


@pytest.mark.parametrize("size", [100, 1000, 10_000])
@pytest.mark.parametrize("partitions", [1, 16])
def test_half_of_a_value_stays_random_however_long_the_file(size: int, partitions: int) -> None:
    values, records = Values(size), (4 << 20) // size
    text = b"".join(values(number) for number in range(0, records * partitions, partitions))
    assert len(values(0)) == len(values(7, b"12345678")) == size
    assert 0.5 <= pa.Codec("zstd", 1).compress(text).size / len(text) < 0.55


@dataclass
class OneBroker:
    """As much of a lab's cluster as MM2's properties ask for."""

    ports: tuple[int, ...] = (9092,)

    def java_properties(self) -> dict[str, str]:
        return {}


def test_settings_say_what_the_lab_adds_and_what_each_sends_with() -> None:
    clusters: Any = {"a": OneBroker(), "b": OneBroker()}
    given = mm2_properties(clusters, [("a", "b")], {})
    assert MM2_LAB.items() <= given.items()
    said = described()
    assert set(said) == set(scenarios.CONTENDERS)
    assert said[MM2_LZ4]["producer.override.compression.type"] == "lz4"
    assert [said[name].get("compression.type, by default") for name in scenarios.CONTENDERS] == [
        "none", "none", None, "lz4"]  # fmt: skip


def test_the_source_is_named_by_its_commit_where_there_is_one(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    (tmp_path / ".git").mkdir()
    assert commit(tmp_path) is None, "no repository"


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(UsageFault, match="no scenario nonsense"):
        scenarios.chosen(scenarios.quick(), ["nonsense"])


INGEST, FANOUT = sizing.Line(4, 6), sizing.Line(3, 5)


def cost(scenario: Scenario) -> float:
    """What the sample machine's relay costs: exactly the model, so that the fit must find it again."""
    ingest = 0 if scenario.kind == FILL else INGEST.at(scenario.record_bytes)
    return ingest + scenario.targets * FANOUT.at(scenario.record_bytes)


def run_of(scenario: Scenario, contender: str) -> dict[str, float]:
    if scenario.kind == IDLE:
        return {"cores": 0.3, "peak_memory_mib": 900.0}
    if scenario.kind == LATENCY:
        ages = {"latency_p50_seconds": 0.7, "latency_p99_seconds": 2.5, "latency_max_seconds": 4.0}
        return {**ages, "cpu_seconds_per_million": cost(scenario) + 50, "peak_memory_mib": 900.0}
    if scenario.kind == GROWTH:
        return growth(9, 12)
    rate = {MIRRORLAKE: 90_000.0, MM2_TUNED: 60_000.0}.get(contender, 30_000.0)
    return {
        "steady_records_per_second": rate, "steady_mb_per_second": rate * scenario.record_bytes / 1e6,
        "records_per_second": rate / 2, "first_record_seconds": 12.0, "cpu_seconds_per_million": 99.0,
        "steady_cpu_seconds_per_million": cost(scenario), "peak_memory_mib": 1000.0 + 100 * scenario.targets,
        "source_bytes_per_record": 500.0 * (1 if contender == MIRRORLAKE else scenario.targets),
        "written_bytes_per_record": 600.0, "bronze_bytes_per_record": 20 + scenario.record_bytes / 2,
    }  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    found = {**describe(False, "mirrorlake bench"), "took_seconds": 5400}
    found["scenarios"] = [
        {"scenario": asdict(s), "rounds": [{c: run_of(s, c) for c in s.contenders} for _ in range(s.rounds)]}
        for s in scenarios.full()
    ]
    return json.loads(json.dumps(found))  # as it comes back from its file


def test_goals_are_judged_by_their_bounds(document: dict[str, Any]) -> None:
    measured = from_json(document)
    verdicts = [goal.reached(measured) for goal in GOALS]
    assert [goal.text for goal, found in zip(GOALS, verdicts, strict=True) if not (found and found[1])] == [
        "latency at 2,000 records/s, p99, seconds"
    ]
    assert GOALS[0].reached({}) is None


def test_growth_is_a_goal_with_the_spread_of_its_rounds(document: dict[str, Any]) -> None:
    measured = from_json(document)
    measured[scenarios.MORE_RECORDS].rounds[:] = [{MIRRORLAKE: growth(9, 12, more)} for more in (0, 1, 2)]
    found = [goal.reached(measured) for goal in GOALS if goal.scenario == scenarios.MORE_RECORDS]
    (added, linear), (whole, tenfold) = filter(None, found)
    assert (added.least, added.most) == (pytest.approx(1), pytest.approx(1.3))
    assert whole.most < 10
    assert (linear, tenfold) == (False, True)


def test_older_results_lack_growth_and_say_so(document: dict[str, Any]) -> None:
    older = [held for held in document["scenarios"] if held["scenario"]["kind"] != GROWTH]
    tenth = Scenario(scenarios.TENTH, records=200_000, contenders=(MIRRORLAKE,))
    older.append({"scenario": asdict(tenth), "rounds": [{MIRRORLAKE: {"steady_cpu_seconds_per_million": 999.0}}]})
    for held in older:
        del held["scenario"]["sizes"]
    document["scenarios"] = older
    text = page.page(document)
    assert text.count("| not measured |") == 4
    assert "### Growth" not in text
    assert sizing.fit(document).error_share == pytest.approx(0, abs=1e-9), "a tenth is no point of the fit"


def test_the_page_holds_every_scenario_and_contender(document: dict[str, Any]) -> None:
    text = page.page(document)
    for scenario in scenarios.full():
        for contender in scenario.contenders:
            assert f"| {scenario.name} | {contender} |" in text
    assert "2 or 3 rounds" in text
    assert "in 90 minutes" in text
    assert "producer.override.batch.size=524288" in text
    assert "| latency at 2,000 records/s, p99, seconds | ≤ 2 | 2.5 | no |" in text


def test_the_readme_says_what_was_run_and_how_it_compares(document: dict[str, Any]) -> None:
    text = page.readme(document)
    facts = ["`mirrorlake bench`", f"{document['machine']['memory_gib']} GiB", document["at"][:10], "2 or 3 rounds"]
    facts += [f"pyspark {document['versions']['pyspark']}", "docs/performance.md"]
    assert [fact for fact in facts if fact not in text] == []
    assert "| 3 targets | 1.5 |" in text
    assert "| 2,000 records/s | mm2-tuned | 0.7 | 2.5 | 4 |" in text


def script(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def writer() -> Any:
    return script("docs/write_performance.py")


def test_pages_say_what_the_kept_results_say(writer: Any) -> None:
    if not writer.KEPT.exists():
        pytest.skip("no results are kept")
    kept = json.loads(writer.KEPT.read_text())
    assert {path: path.read_text() for path in writer.pages(kept)} == writer.pages(kept)
    assert sizing.read() == sizing.fit(kept)


def test_only_what_stands_between_the_marks_is_written(writer: Any, document: dict[str, Any]) -> None:
    once = writer.replaced(f"mine\n{writer.BEGIN}old\n{writer.END}mine too\n", "new")
    assert once == f"mine\n{writer.BEGIN}\nnew\n{writer.END}mine too\n"
    assert writer.replaced(once, "new") == once
    for path, text in writer.pages(document).items():
        assert "| goal |" in text, path


SCALED = {
    "at": "2026-11-18T00:00:00+00:00", "command": "python benchmarks/scale_out.py", "records": 1000, "cores": 2,
    "runs": {
        count: [{"first_record_seconds": 9.0, "seconds": 20.0, "steady_records_per_second": rate} for rate in rates]
        for count, rates in {"1": [40_000, 42_000], "2": [60_000, 62_000]}.items()
    },
}  # fmt: skip


def test_executors_are_a_table_with_arithmetic_that_is_called_so(document: dict[str, Any]) -> None:
    text = page.scale_out(SCALED, document)
    assert "| 1 | 41,000 (40,000 to 42,000) | 1 | 9 |" in text
    assert "| 2 | 61,000 (60,000 to 62,000) | 1.49 | 9 |" in text
    base = cost(scenarios.full()[0])
    assert f"between 101,000 and {page.number(4e6 / base)} records/s" in text
    assert "Arithmetic, not measured" in text


def test_a_single_round_is_called_so(document: dict[str, Any]) -> None:
    for held in document["scenarios"]:
        del held["rounds"][1:]
    assert "One round only" in page.page(document)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (2.5, "2.5"), (98.76, "98.8"), (123.4, "123"), (90_123, "90,100"), (1_234_567, "1,230,000")],
)
def test_numbers_show_three_figures(value: float, text: str) -> None:
    assert page.number(value) == text


def test_pictures_are_drawn(document: dict[str, Any], tmp_path: Path) -> None:
    drawn = plots.draw(document, tmp_path)
    assert {path.name for path in drawn} == {*plots.PICTURES, "latency.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_results_are_shown_and_written(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    present(document, tmp_path)
    shown = capsys.readouterr().out
    assert all(title in shown for title in ("Throughput", "Latency", "Growth", "Idle topics", "Ratios", "Goals"))
    assert "### Goals" in (tmp_path / "results.md").read_text()


def test_a_benchmark_cut_short_can_still_be_shown(document: dict[str, Any], tmp_path: Path) -> None:
    """Its last scenario has a round in which only some had their turn."""
    del document["scenarios"][2:]
    document["scenarios"][1]["rounds"] = [{MM2_TUNED: document["scenarios"][1]["rounds"][0][MM2_TUNED]}]
    document["scenarios"].append({"scenario": asdict(scenarios.full()[2]), "rounds": []})
    present(document, tmp_path)
    assert "| 3 targets | mm2-tuned |" in (tmp_path / "results.md").read_text()
    assert "not measured" in (tmp_path / "results.md").read_text()


def test_metrics_have_names_that_mlflow_takes(document: dict[str, Any]) -> None:
    found = tracking.metrics(document)
    assert found["2_000_records_s/mirrorlake/latency_p50_seconds"] == 0.7
    assert found["3_targets/mm2-tuned/source_bytes_per_record"] == 1500
    assert "3_targets/mm2-tuned/source_bytes_per_record.most" in tracking.metrics(document, "most")


def test_a_run_in_mlflow_says_what_was_run_with_its_spread_and_coefficients(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    base = document["scenarios"][0]["rounds"]
    base[1][MIRRORLAKE]["records_per_second"], base[2][MIRRORLAKE]["records_per_second"] = 1.0, 90_000.0
    results, store = tmp_path / "results", (tmp_path / "store").as_uri()
    results.mkdir()
    keep_coefficients(document, results)
    run_id = tracking.track(document, results, store)
    kept = mlflow.MlflowClient(store)
    found = kept.get_run(run_id).data
    assert found.params["command"] == "mirrorlake bench"
    assert (found.params["rounds"], found.params["records"]) == ("2 or 3", "2000000")
    assert "producer.override.batch.size=524288" in found.params["settings/mm2-tuned"]
    assert "record_bytes=10000" in found.params["scenario/10_kB"]
    spread = [found.metrics[f"base/mirrorlake/records_per_second{part}"] for part in ("", ".least", ".most")]
    assert spread == [45_000, 1, 90_000]
    assert [file.path for file in kept.list_artifacts(run_id)] == ["coefficients.json"]
    assert sizing.read(results / "coefficients.json") == sizing.fit(document)


def test_few_scenarios_leave_no_coefficients(document: dict[str, Any], tmp_path: Path) -> None:
    del document["scenarios"][2:]
    keep_coefficients(document, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- sizing ---


def test_the_fit_finds_what_each_leg_costs(document: dict[str, Any]) -> None:
    known = sizing.fit(document)
    assert known.ingest_cpu_seconds_per_million.at(1000) == pytest.approx(INGEST.at(1000))
    assert known.fanout_cpu_seconds_per_million.at(10_000) == pytest.approx(FANOUT.at(10_000))
    assert known.error_share == pytest.approx(0, abs=1e-9)
    assert known.floor_cores == pytest.approx(50 * 10_000 / 1e6)
    assert known.bronze_bytes_per_record.at(1000) == pytest.approx(520)
    assert known.storage_error_share == pytest.approx(0, abs=1e-5)
    assert [latency.records_per_second for latency in known.latencies] == [2_000, 10_000]
    assert (known.memory_mib, known.memory_mib_per_target) == (1000, 100)
    assert known.partition_records_per_second == 90_000
    assert sizing.Coefficients.from_json(json.loads(json.dumps(known.to_json()))) == known


def test_what_the_model_misses_and_how_rounds_differ_is_its_error(document: dict[str, Any]) -> None:
    three_targets = next(held for held in document["scenarios"] if held["scenario"]["name"] == "3 targets")
    for number, held in enumerate(three_targets["rounds"]):
        held[MIRRORLAKE]["steady_cpu_seconds_per_million"] *= 1 + number / 2
    assert sizing.fit(document).error_share >= 0.333


def test_what_storage_misses_is_its_error(document: dict[str, Any]) -> None:
    large = next(held for held in document["scenarios"] if held["scenario"]["name"] == "10 kB")
    for held in large["rounds"]:
        held[MIRRORLAKE]["bronze_bytes_per_record"] /= 2
    known = sizing.fit(document)
    assert known.storage_error_share is not None
    assert known.storage_error_share >= abs(known.bronze_bytes_per_record.at(10_000) / 2510 - 1) - 1e-6
    assert known.storage_error_share > 0.05
    assert known.error_share == pytest.approx(0, abs=1e-9)


def test_coefficients_without_what_came_later_are_read_and_say_unknown(document: dict[str, Any]) -> None:
    older = sizing.fit(document).to_json()
    del older["storage_error_share"], older["latencies"]
    need = sizing.size(sizing.Coefficients.from_json(older), 1000, 1000, 1)
    assert (need.storage_error_share, need.latency) == (None, None)
    shown = {name: (value, how) for name, value, how in size_rows(need)}
    assert shown["latency, seconds"] == ("unknown", "not measured")
    assert "error unknown" in shown["storage, GiB per day"][1]


@pytest.mark.parametrize(("pace", "measured_at"), [(10, 2_000), (2_001, 10_000), (50_000, 10_000)])
def test_latency_is_that_of_a_measured_pace(document: dict[str, Any], pace: float, measured_at: float) -> None:
    need = sizing.size(sizing.fit(document), pace, 1000, 1)
    assert need.latency == sizing.Latency(measured_at, 0.7, 2.5)
    said = " ".join(latency_cells(need))
    assert "p50 0.7, p99 2.5" in said
    assert ("faster pace was not measured" in said) == (pace > 10_000)


def test_costs_are_never_negative() -> None:
    points = [sizing.Point(1, 1, 100, 9, 0), sizing.Point(1, 1, 1000, 9, 0), sizing.Point(1, 1, 10_000, 8, 0)]
    for line in sizing._legs(points):
        assert line.fixed >= 0
        assert line.per_kb >= 0


def test_too_few_scenarios_are_refused(document: dict[str, Any]) -> None:
    del document["scenarios"][2:]
    with pytest.raises(UsageFault, match="too few scenarios"):
        sizing.fit(document)


def test_a_load_is_sized_by_arithmetic(document: dict[str, Any]) -> None:
    known = replace(sizing.fit(document), floor_cores=0.5)
    need = sizing.size(known, 20_000, 1000, 3)
    assert need.busy_cores == pytest.approx(20_000 * (10 + 3 * 8) / 1e6 + 0.5)
    assert (need.cores, need.tasks) == (2, 2)
    assert need.memory_gib == pytest.approx(1300 / 1024)
    assert need.storage_gib_per_day == pytest.approx(520 * 20_000 * 86_400 / 2**30)
    assert need.event_hubs_units_per_target == 20
    assert (need.source_read_mb_per_second, need.sent_mb_per_second) == (20, 60)
    assert sizing.size(known, 180_000, 1000, 1).partitions == 2
    assert sizing.size(known, 100, 50_000, 1).event_hubs_units_per_target == 5


def test_the_size_command_says_its_error(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "coefficients.json"
    path.write_text(json.dumps(sizing.fit(document).to_json()))
    asked = ["size", "--records-per-second", "5000", "--record-bytes", "1000", "--coefficients", str(path)]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0, said.output
    assert said.output.count("± 0%") == 2
    assert "tasks of each leg" in said.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--targets", "2", "--json"]).stdout)
    assert (found["targets"], found["measured"]["quick"]) == (2, False)


# --- instruments ---


def test_profiles_are_tables() -> None:
    profiles = script("benchmarks/profiles.py")
    shaped = profiles.shape(argparse.Namespace(bytes=[100], mib=1, rounds=1))
    assert [line.split("|")[2].strip() for line in shaped.splitlines()[2:]] == [
        "in: messages to Arrow", "out: Arrow to what is produced, 2 MiB at a time", "the same, 8 MiB at a time"
    ]  # fmt: skip
    counted = profiles.files(argparse.Namespace(files=[0, 5], rounds=1))
    assert counted.startswith("| CPU, ms | 0 files | 5 files |")
    threads = [
        "kafka-admin-client-thread | adminclient-3",
        "stream execution thread for [id = 1a, runId = 2b]",
        "Thread-4",
    ]
    assert [profiles.plain(thread) for thread in threads] == [
        "kafka-admin-client-thread", "stream execution thread for", "Thread"
    ]  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_tree_is_counted_with_its_children_the_dead_too() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    script = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used, cpu_seconds = usage_of([process.pid]), cpu_seconds_of([process.pid])
        process.communicate(b"\n")
    assert 0.35 <= used.cpu_seconds <= cpu_seconds  # counted in ticks
    assert used.memory_bytes > 1 << 20
    assert usage_of([process.pid]).cpu_seconds == 0
    assert os.getpid() != process.pid


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_is_asked_for_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MEMORY_SECONDS", 0.01)
    with memory_of(os.getpid()) as seen:
        held = b"x" * (64 << 20)
        until = time.monotonic() + 10
        while max(seen) - seen[0] < 32 << 20 and time.monotonic() < until:
            time.sleep(0.01)
        del held
    asked = len(seen)
    assert max(seen) - seen[0] >= 32 << 20
    time.sleep(0.05)
    assert len(seen) == asked


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that gives back what it gets."""
    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=_echo, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def _echo(listener: socket.socket) -> None:
    side, _ = listener.accept()
    while data := side.recv(1 << 16):
        side.sendall(data)
    side.close()


def test_the_delay_line_delays_and_does_not_throttle(echo: int) -> None:
    (port,) = free_ports(1)
    threading.Thread(target=serve, args=(port, echo, 0.05), daemon=True).start()
    side = _connected(port)
    begun = time.monotonic()
    side.sendall(b"x")
    assert side.recv(1) == b"x"
    assert time.monotonic() - begun >= 0.1
    # Were each chunk delayed by itself, 64 of them would take 64 delays at least.
    sent = os.urandom(64 * CHUNK_BYTES)
    threading.Thread(target=lambda: (side.sendall(sent), side.shutdown(socket.SHUT_WR)), daemon=True).start()
    begun, got = time.monotonic(), b"".join(iter(lambda: side.recv(1 << 20), b""))
    assert got == sent
    assert 0.1 <= time.monotonic() - begun < 64 * 0.05


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((HOST, port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
