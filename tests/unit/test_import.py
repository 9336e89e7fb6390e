"""Three formats by one door: told apart by content, loaded, and written as our YAML."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

import pytest

from mirrorlake import cli
from mirrorlake.config import Config, load, parse
from mirrorlake.errors import ConfigFault, UsageFault
from mirrorlake.files import Format, Loaded, load_any, tell, to_yaml
from mirrorlake.mm2keys import Fate, key_tables

FIXTURES = Path(__file__).parent / "fixtures"
DOCS = Path(__file__).parents[2] / "docs"
CONF = Path(__file__).parents[2] / "conf"
SEEDS = sorted(path for path in FIXTURES.glob("seed-*") if "access" not in path.name)
OURS = """\
clusters:
  src: {bootstrap_servers: "localhost:1"}
  dr: {bootstrap_servers: "localhost:2"}
flows:
  orders: {source: src, topics: [orders], targets: [{cluster: dr}]}
"""
THEIRS = """\
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
A->B.topics = orders
"""


def seed(path: Path, folder: Path) -> Path:
    """The file of a scenario; where it names files of its own machine, those of the fixtures are meant."""
    text = path.read_text().replace("/properties/access.properties", str(FIXTURES / "seed-004-access.properties"))
    (folder / path.name).write_text(text)
    return folder / path.name


def without_path(config: Config) -> Config:
    return config.model_copy(update={"path": None})


# --- the scenarios ---


def test_there_is_a_fixture_for_every_scenario() -> None:
    assert {path.name[:8] for path in SEEDS} == {f"seed-00{number}" for number in range(5)}


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name)
def test_every_scenario_loads(path: Path, tmp_path: Path) -> None:
    loaded = load_any(seed(path, tmp_path), Path("/mnt/secrets"))
    assert loaded.format is (Format.MM2 if path.suffix == ".properties" else Format.STRIMZI)
    assert loaded.config.flows
    assert loaded.notes


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name)
def test_what_import_writes_loads_to_an_equal_configuration(path: Path, tmp_path: Path) -> None:
    loaded = load_any(seed(path, tmp_path), Path("/mnt/secrets"))
    text = to_yaml(loaded)
    assert tell(text) is Format.YAML
    assert without_path(parse(text, "x.yml")) == without_path(loaded.config)


def scenario(name: str, folder: Path) -> Loaded:
    return load_any(seed(FIXTURES / name, folder), Path("/mnt/secrets"))


def test_event_streams_to_local(tmp_path: Path) -> None:
    made = scenario("seed-000-event-streams-to-local.properties", tmp_path).config
    assert (made.clusters["source"].kind, made.clusters["target"].kind) == ("event_streams", "kafka")
    assert made.flows["source"].topics == ["orders"]


def test_a_login_over_two_lines_without_a_backslash_is_understood_and_told(tmp_path: Path) -> None:
    loaded = scenario("seed-001-local-to-event-streams.properties", tmp_path)
    assert loaded.config.clusters["target"].security.username == "token"
    assert any("a backslash is missing" in warning for warning in loaded.warnings())
    assert {note.key for note in loaded.notes if note.fate is Fate.UNKNOWN} == {"internal.topic.replication.factor"}


def test_event_hubs_by_references(tmp_path: Path) -> None:
    made = scenario("seed-004-event-hubs.properties", tmp_path).config
    hubs = made.clusters["target"]
    assert (hubs.kind, hubs.bootstrap_servers) == ("event_hubs", "relay.servicebus.windows.net:9093")
    assert hubs.security.password is not None
    assert not hubs.security.password.literal
    assert hubs.security.password.resolve().startswith("Endpoint=sb://relay")


def test_active_passive_keeps_names(tmp_path: Path) -> None:
    made = scenario("seed-002-active-passive.yaml", tmp_path).config
    assert made.flows["us"].targets[0].naming == "identity"
    assert made.clusters["us"].security.key == "/mnt/secrets/mirror-maker-us/user.key"


# --- told apart ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(OURS, Format.YAML, id="ours"),
        pytest.param("{clusters: {a: {bootstrap_servers: 'a:1'}}, flows: {}}", Format.YAML, id="ours on one line"),
        pytest.param(
            "clusters:\n  a:\n   client:\n     x.bootstrap.servers: y", Format.YAML, id="ours, with a wrong key"
        ),
        pytest.param("clusters: [", Format.YAML, id="broken"),
        pytest.param("", Format.YAML, id="empty"),
        pytest.param(THEIRS, Format.MM2, id="MM2"),
        pytest.param(THEIRS.replace(" = ", ": "), Format.MM2, id="MM2 with colons"),
        pytest.param(THEIRS.replace(" = ", " "), Format.MM2, id="MM2 with blanks"),
        pytest.param(re.sub("^", "  ", THEIRS, flags=re.M), Format.MM2, id="MM2, indented"),
        pytest.param("A->B.enabled=true", Format.MM2, id="a pair alone"),
        pytest.param("apiVersion: x\nkind: KafkaMirrorMaker2\n", Format.STRIMZI, id="Strimzi"),
        pytest.param('{"kind": "KafkaMirrorMaker2"}', Format.STRIMZI, id="Strimzi as JSON"),
    ],
)
def test_formats_are_told_apart_by_content(text: str, found: Format) -> None:
    assert tell(text) is found


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yml")), ids=lambda path: path.name)
def test_our_own_files_are_read_as_before(path: Path) -> None:
    loaded = load_any(path)
    assert loaded.config == load(path)
    assert (loaded.format, loaded.notes) == (Format.YAML, ())


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="could not be read"):
        load_any(tmp_path / "gone")
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    with pytest.raises(UsageFault, match="larger than"):
        load_any(tmp_path / "large")


def test_a_faulty_mm2_file_names_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(THEIRS + "transforms=x\nreplication.factor=y\n")
    with pytest.raises(ConfigFault) as refused:
        load_any(path)
    assert [fault.where for fault in refused.value.faults] == [f"{path}:6", f"{path}:7"]


# --- the command ---


class Command:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["mirrorlake", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = self._capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err


@pytest.fixture
def mirrorlake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRRORLAKE_ROOT", raising=False)
    monkeypatch.setenv("MIRRORLAKE_DEBUG", "")
    (tmp_path / "mm2.properties").write_text(THEIRS + "nonsense=1\nforwarding.admin.class=x.Y\n")
    return Command(monkeypatch, capsys)


def test_import_writes_a_file_for_its_owner_alone_and_a_line_for_every_key(mirrorlake: Command) -> None:
    code, out, _ = mirrorlake("import", "mm2.properties", "-o", "conf/x.yml")
    assert code == 0
    assert "mirrorlake plan -c conf/x.yml" in out
    assert load(Path("conf/x.yml")).flows["A"].topics == ["orders"]
    assert stat.S_IMODE(Path("conf/x.yml").stat().st_mode) == 0o600
    written = Path("conf/x.yml").read_text()
    for line in Path("mm2.properties").read_text().splitlines():
        assert f" {re.split('[ =]', line)[0]}: " in written


def test_import_overwrites_only_when_told(mirrorlake: Command) -> None:
    Path("x.yml").write_text("mine")
    assert mirrorlake("import", "mm2.properties", "-o", "x.yml")[0] == 2
    assert Path("x.yml").read_text() == "mine"
    assert mirrorlake("import", "mm2.properties", "-o", "x.yml", "--force")[0] == 0


def test_import_without_an_output_prints_only_the_yaml(mirrorlake: Command) -> None:
    code, out, _ = mirrorlake("import", "mm2.properties")
    assert code == 0
    assert parse(out, "x").flows


def test_import_takes_the_folder_of_secrets(mirrorlake: Command) -> None:
    path = FIXTURES / "seed-003-openshift.yaml"
    assert "ca: /run/s/my-cluster-source" in mirrorlake("import", str(path), "--secrets-dir", "/run/s")[1]


def test_import_of_our_own_format_is_refused(mirrorlake: Command) -> None:
    Path("x.yml").write_text(OURS)
    assert mirrorlake("import", "x.yml")[0] == 2


def test_import_copies_no_secret_out_of_its_file(mirrorlake: Command) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    Path("s.properties").write_text(f'J={module} required username="u" password="hunter2";\n')
    login = "A.security.protocol=SASL_SSL\nA.sasl.mechanism=PLAIN\nA.sasl.jaas.config=${file:s.properties:J}\n"
    Path("mm2.properties").write_text(THEIRS + login)
    code, out, err = mirrorlake("import", "mm2.properties", "-o", "x.yml")
    assert code == 2
    assert "hunter2" not in out + err
    assert not Path("x.yml").exists()
    assert mirrorlake("status", "-c", "mm2.properties")[0] == 0


def test_any_command_takes_an_mm2_file_and_warns_on_stderr(mirrorlake: Command) -> None:
    code, out, err = mirrorlake("status", "-c", "mm2.properties", "--json")
    assert code == 0
    assert '"flow": "A"' in out
    assert "warning: mm2.properties:6: nonsense: unknown to MM2 as well" in err
    assert "warning: mm2.properties:7: forwarding.admin.class: not supported" in err
    assert "plain text" in err
    assert "A->B.topics" not in err


# --- the page ---


def test_the_page_holds_what_becomes_of_every_key() -> None:
    page = (DOCS / "migrate-from-mm2.md").read_text(encoding="utf-8")
    assert key_tables() in page, "put the output of mirrorlake.mm2keys.key_tables() there"
