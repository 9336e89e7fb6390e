"""The command line without a JVM: what it refuses, what it says, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mirrorlake import cli, errors

CONFIG = """\
clusters:
  src: {bootstrap_servers: "localhost:1"}
  dr: {bootstrap_servers: "localhost:2"}
flows:
  orders:
    source: src
    topics: [orders]
    targets: [{cluster: dr}]
"""


class Machine:
    """A folder with a configuration, and the command that is run there, in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.write(CONFIG)

    def write(self, text: str) -> None:
        (self.folder / "x.yml").write_text(text)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self._monkeypatch.setattr(sys, "argv", ["mirrorlake", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = self._capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err


@pytest.fixture
def mirrorlake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRRORLAKE_ROOT", raising=False)
    monkeypatch.setenv("MIRRORLAKE_DEBUG", "")
    return Machine(tmp_path, monkeypatch, capsys)


CONFIGURED = ["run", "status", "pause", "resume", "lag", "audit", "plan", "doctor"]


# --- what is refused ---


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_wrong_configuration_is_refused_with_every_fault_and_no_traceback(mirrorlake: Machine, command: str) -> None:
    mirrorlake.write(CONFIG.replace("source: src", "source: scr").replace("cluster: dr", "clutser: dr"))
    code, out, err = mirrorlake(command, "-c", "x.yml")
    assert code == 2
    assert out == ""
    assert err.startswith("mirrorlake: x.yml: ")
    assert "x.yml:6: flows.orders.source: unknown cluster scr; did you mean src?" in err
    assert "clutser: unknown key; did you mean cluster?" in err
    assert "next: docs/configuration.md" in err
    assert "Traceback" not in err
    assert "\n\n" not in err


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_missing_file_is_named(mirrorlake: Machine, command: str) -> None:
    code, _, err = mirrorlake(command, "-c", "gone.yml")
    assert code == 2
    assert "gone.yml could not be read" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["run", "pause", "resume", "lag", "audit", "plan"])
def test_an_unknown_flow_is_refused_with_a_guess(mirrorlake: Machine, command: str) -> None:
    code, _, err = mirrorlake(command, "-c", "x.yml", "--flow", "order")
    assert code == 2
    assert "unknown flow order; did you mean orders?" in err


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_unknown_target_is_refused_and_nothing_is_written(mirrorlake: Machine, command: str) -> None:
    code, _, err = mirrorlake(command, "-c", "x.yml", "--target", "hubs")
    assert code == 2
    assert "targets are: dr" in err
    assert not (mirrorlake.folder / ".mirrorlake").exists()


def test_a_topic_that_no_flow_takes_is_refused_and_nothing_is_written(mirrorlake: Machine) -> None:
    code, _, err = mirrorlake("pause", "-c", "x.yml", "--topic", "nobody-knows-it")
    assert code == 2
    assert "no flow here takes a topic nobody-knows-it" in err
    assert not (mirrorlake.folder / ".mirrorlake").exists()


def test_resume_says_what_it_took_back_and_what_it_did_not(mirrorlake: Machine) -> None:
    mirrorlake("pause", "-c", "x.yml")
    assert (
        "nothing was paused so; paused is: all targets, all topics"
        in mirrorlake("resume", "-c", "x.yml", "--target", "dr")[1]
    )
    assert "resumed all targets, all topics" in mirrorlake("resume", "-c", "x.yml")[1]


def test_run_refuses_a_cluster_that_is_not_there(mirrorlake: Machine) -> None:
    code, _, err = mirrorlake("run", "-c", "x.yml", "--clusters", "dr,nowhere")
    assert code == 2
    assert "unknown cluster nowhere" in err


@pytest.mark.parametrize("words", [("run",), ("run", "--nope"), ("nope",), ("run", "-c", "x.yml", "--for", "soon")])
def test_wrong_use_ends_with_2(mirrorlake: Machine, words: tuple[str, ...]) -> None:
    code, _, err = mirrorlake(*words)
    assert code == 2
    assert "Error" in err


def test_debug_shows_the_traceback(mirrorlake: Machine) -> None:
    code, _, err = mirrorlake("--debug", "status", "-c", "gone.yml")
    assert code == 2
    assert "Traceback" in err


# --- help ---


@pytest.mark.parametrize(
    "words", [(), *((command,) for command in [*CONFIGURED, "sql", "lab"]), ("lab", "up")], ids=str
)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed(mirrorlake: Machine, words: tuple[str, ...], option: str) -> None:
    code, out, _ = mirrorlake(*words, option)
    assert code == 0
    assert "Usage: mirrorlake" in out


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "mirrorlake.cli", "--help"]
    assert "Exit codes" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


# --- pause, resume, status ---


def read_status(mirrorlake: Machine) -> dict[str, object]:
    code, out, _ = mirrorlake("status", "-c", "x.yml", "--json")
    assert code == 0
    (flow,) = json.loads(out)
    assert isinstance(flow, dict)
    return flow


def test_a_flow_that_never_ran_says_so(mirrorlake: Machine) -> None:
    assert read_status(mirrorlake) == {
        "flow": "orders", "state": "never ran", "pid": None, "epoch": None, "since": None, "said_at": None,
        "reason": "", "paused": [], "targets": [],
    }  # fmt: skip


def test_what_is_paused_shows_until_it_is_resumed(mirrorlake: Machine) -> None:
    assert mirrorlake("pause", "-c", "x.yml", "--target", "dr")[0] == 0
    assert mirrorlake("pause", "-c", "x.yml", "--topic", "orders")[0] == 0
    assert read_status(mirrorlake)["paused"] == [{"target": "dr", "topic": None}, {"target": None, "topic": "orders"}]
    assert mirrorlake("resume", "-c", "x.yml", "--target", "dr")[0] == 0
    assert read_status(mirrorlake)["paused"] == [{"target": None, "topic": "orders"}]
    assert mirrorlake("resume", "-c", "x.yml")[0] == 0
    assert read_status(mirrorlake)["paused"] == []


def test_status_for_people_names_flow_and_state(mirrorlake: Machine) -> None:
    code, out, _ = mirrorlake("status", "-c", "x.yml")
    assert code == 0
    assert "orders" in out
    assert "never" in out


@pytest.mark.parametrize("by", ["option", "environment", "both"])
def test_the_root_is_the_option_then_the_environment(
    mirrorlake: Machine, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by != "option":
        monkeypatch.setenv("MIRRORLAKE_ROOT", "from-environment")
    option = [] if by == "environment" else ["--root", "from-option"]
    assert mirrorlake("pause", "-c", "x.yml", *option)[0] == 0
    chosen = "from-environment" if by == "environment" else "from-option"
    assert (mirrorlake.folder / chosen / "control" / "orders.json").exists()
    assert [path.name for path in mirrorlake.folder.iterdir() if path.is_dir()] == [chosen]


def test_the_root_of_the_configuration_is_used(mirrorlake: Machine) -> None:
    mirrorlake.write("storage: {root: mine}\n" + CONFIG)
    assert mirrorlake("pause", "-c", "x.yml")[0] == 0
    assert (mirrorlake.folder / "mine" / "control" / "orders.json").exists()


# --- errors and exit codes ---


EXIT_CODES = [
    (errors.UsageFault, 2), (errors.ConfigFault, 2), (errors.ClusterUnreachable, 3), (errors.AccessRefused, 3),
    (errors.TopicMissing, 3), (errors.StorageUnreachable, 3), (errors.DeliveryDoubt, 3), (errors.SourceLoss, 4),
    (errors.TargetDiverged, 4), (errors.ExistingRecords, 4), (errors.Undeliverable, 4), (errors.StateMismatch, 4),
    (errors.LeaseHeld, 5),
]  # fmt: skip


def app_that(act: object) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(act)  # type: ignore[type-var]
    return app


@pytest.mark.parametrize(("fault", "code"), EXIT_CODES, ids=lambda value: getattr(value, "__name__", None))
def test_an_error_becomes_its_exit_code_and_one_paragraph(
    mirrorlake: Machine, monkeypatch: pytest.MonkeyPatch, fault: type[errors.MirrorlakeError], code: int
) -> None:
    def act() -> None:
        raise fault("what [is] wrong", "what to do")

    monkeypatch.setattr(cli, "app", app_that(act))
    assert mirrorlake() == (code, "", "mirrorlake: what [is] wrong\nnext: what to do\n")


def test_an_interrupted_command_ends_with_130_and_no_traceback(
    mirrorlake: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", app_that(act))
    code, _, err = mirrorlake()
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_that_exits_keeps_its_code(mirrorlake: Machine, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def act() -> None:
        raise typer.Exit(code)

    monkeypatch.setattr(cli, "app", app_that(act))
    assert mirrorlake()[0] == code
