"""The Databricks bundle, checked without a workspace: shapes, names and references."""

import configparser
import copy
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from mirrorlake import jobs

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]
KINDS: dict[str, Any] = {"jobs": Job, "schemas": Schema, "volumes": Volume}
TARGETS = ("dev", "prod")
# The keys of databricks.yml itself, which the typed classes of databricks-bundles do not cover.
ROOT_KEYS = {"bundle", "include", "artifacts", "experimental", "variables", "targets"}
TARGET_KEYS = {"mode", "default", "presets", "workspace", "variables", "resources"}
VARIABLE_KEYS = {"description", "default", "type"}

Tree = dict[str, Any]


def load(path: Path) -> Tree:
    loaded: Tree = yaml.safe_load(path.read_text())
    return loaded


def merged(base: Tree, over: Tree) -> Tree:
    result = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def included_files() -> list[Path]:
    return sorted(path for pattern in BUNDLE["include"] for path in ROOT.glob(pattern))


def resources(target: str) -> Tree:
    """All resources as a target deploys them: every included file, then the target's own changes."""
    tree: Tree = {}
    for path in included_files():
        tree = merged(tree, load(path)["resources"])
    return merged(tree, BUNDLE["targets"][target].get("resources", {}))


def validate(tree: Tree) -> None:
    for kind, named in tree.items():
        for resource in named.values():
            KINDS[kind].from_dict(resource)


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a container, with the nearest key above it."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from leaves(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, key)
    else:
        yield key, node


def references(tree: Tree) -> set[str]:
    return {ref for _, value in leaves(tree) for ref in re.findall(r"\$\{([^}]+)\}", str(value))}


def literal_secrets(tree: Tree) -> list[str]:
    """Keys whose value looks like a secret itself, not like a reference to one."""
    name = re.compile(r"passw|token|sasl|jaas|api_?key|access_?key|connection_?string|credential", re.I)
    shape = re.compile(r"dapi[0-9a-f]{16,}|SharedAccessKey=|-----BEGIN|password\s*=", re.I)
    return [
        key
        for key, value in leaves(tree)
        if shape.search(str(value)) or (name.search(key) and not re.match(r"\$\{|\{\{secrets/", str(value)))
    ]


def unknown_references(tree: Tree, resources_of_target: Tree) -> set[str]:
    known = {f"var.{name}" for name in BUNDLE["variables"]}
    known |= {"workspace.current_user.userName", "workspace.file_path", "bundle.name", "bundle.target"}
    for kind, named in resources_of_target.items():
        known |= {f"resources.{kind}.{key}.{field}" for key, value in named.items() for field in value}
    return references(tree) - known


BUNDLE = load(ROOT / "databricks.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VARIABLES = {
    **{name: variable["default"] for name, variable in BUNDLE["variables"].items() if "default" in variable},
    "catalog": "relay",
    "config_file": "conf/orders.yml",
}


def wheel_tasks() -> list[Tree]:
    jobs = resources("prod")["jobs"].values()
    return [task for job in jobs for task in job["tasks"] if "python_wheel_task" in task]


@pytest.mark.parametrize("target", TARGETS)
def test_every_resource_has_a_shape_databricks_knows(target: str) -> None:
    validate(resources(target))


def test_every_file_in_resources_is_included_and_holds_resources_only() -> None:
    assert included_files() == sorted((ROOT / "resources").iterdir())
    assert all(set(load(path)) == {"resources"} for path in included_files())


def test_the_bundle_has_the_targets_dev_by_default_and_prod() -> None:
    targets = BUNDLE["targets"]
    assert {name: target["mode"] for name, target in targets.items()} == {
        "dev": "development",
        "prod": "production",
    }
    assert [name for name, target in targets.items() if target.get("default")] == ["dev"]


def test_the_keys_of_the_bundle_file_are_known() -> None:
    assert set(BUNDLE) <= ROOT_KEYS
    assert all(set(target) <= TARGET_KEYS for target in BUNDLE["targets"].values())
    assert all(set(variable) <= VARIABLE_KEYS for variable in BUNDLE["variables"].values())


@pytest.mark.parametrize("target", TARGETS)
def test_every_reference_leads_somewhere(target: str) -> None:
    tree = resources(target)
    assert unknown_references(merged(BUNDLE, {"resources": tree}), tree) == set()


def test_every_variable_is_described_and_used() -> None:
    assert all(variable.get("description") for variable in BUNDLE["variables"].values())
    used = {ref.removeprefix("var.") for ref in references(resources("prod")) if ref.startswith("var.")}
    assert used == set(BUNDLE["variables"])


def test_targets_assign_only_declared_variables() -> None:
    for target in BUNDLE["targets"].values():
        assert set(target.get("variables", {})) <= set(BUNDLE["variables"])


def test_every_wheel_task_calls_an_entry_point_of_this_project() -> None:
    assert wheel_tasks()
    for task in wheel_tasks():
        assert task["python_wheel_task"]["package_name"] == PROJECT["name"]
        assert task["python_wheel_task"]["entry_point"] in PROJECT["scripts"]


def test_parameters_are_strings_as_the_jobs_service_wants_them() -> None:
    for task in wheel_tasks():
        assert all(isinstance(v, str) for v in task["python_wheel_task"]["named_parameters"].values())


def test_no_job_runs_twice_at_once() -> None:
    assert {job["max_concurrent_runs"] for job in resources("prod")["jobs"].values()} == {1}


def test_every_task_names_a_cluster_of_its_job() -> None:
    for job in resources("prod")["jobs"].values():
        clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
        assert {task["job_cluster_key"] for task in job["tasks"]} <= clusters


def entry_points() -> set[str]:
    return {task["python_wheel_task"]["entry_point"] for task in wheel_tasks()}


def test_the_wheel_comes_from_the_folder_the_artifact_is_built_into() -> None:
    assert BUNDLE["artifacts"]["wheel"]["build"] == "uv build --wheel"  # writes to dist/
    for task in wheel_tasks():
        assert task["libraries"] == [{"whl": "../dist/*.whl"}]


def test_the_wheel_has_the_entry_points_that_the_jobs_call(tmp_path: Path) -> None:
    """By the backend of pyproject.toml, as `uv build` has it built; it stands in `dev`, so no network is needed."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("mirrorlake-*.whl")
    with zipfile.ZipFile(path) as wheel:
        (listed,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
        points = configparser.ConfigParser()
        points.read_string(wheel.read(listed).decode())
        modules = {name.removesuffix(".py").replace("/", ".") for name in wheel.namelist()}
    found = dict(points["console_scripts"])
    assert found == PROJECT["scripts"]
    assert entry_points() <= found.keys()
    assert {value.partition(":")[0] for value in found.values()} <= modules


def test_every_entry_point_that_the_jobs_call_leads_to_a_function() -> None:
    installed = {point.name: point for point in distribution(PROJECT["name"]).entry_points}
    assert all(callable(installed[name].load()) for name in entry_points())


def filled_in(value: str, target: str) -> str:
    """A value as the bundle hands it over, the variables without a default being what the documentation gives them."""
    given = {**VARIABLES, **BUNDLE["targets"][target].get("variables", {})}
    tree = {"workspace": {"file_path": "/Workspace/files"}, "var": given, "resources": resources(target)}

    def look_up(match: re.Match[str]) -> str:
        node: Any = tree
        for step in match.group(1).split("."):
            node = node[step]
        return filled_in(str(node), target)

    return re.sub(r"\$\{([^}]+)\}", look_up, value)


@pytest.mark.parametrize("target", TARGETS)
def test_the_job_understands_the_parameters_that_the_bundle_gives_it(target: str) -> None:
    (task,) = (t["python_wheel_task"] for job in resources(target)["jobs"].values() for t in job["tasks"])
    given = [f"--{name}={filled_in(value, target)}" for name, value in task["named_parameters"].items()]
    asked = jobs.parse_arguments(given)
    assert vars(asked) == {
        "config": Path("/Workspace/files/conf/orders.yml"),
        "catalog": "relay",
        "volume": "/Volumes/relay/ops/state",
    }


@pytest.mark.parametrize("path", sorted((ROOT / "conf").iterdir()), ids=lambda path: path.name)
def test_every_example_may_be_the_file_that_the_job_runs(path: Path) -> None:
    config = jobs.read_config(["--config", str(path), "--catalog", "relay", "--volume", "/Volumes/relay/ops/state"])
    assert config.flows
    assert (config.storage.catalog, config.storage.root) == ("relay", None)


@pytest.mark.parametrize("change", [{"cataloge": "x"}, {"volume": None}], ids=["an unknown one", "a missing one"])
def test_a_wrong_parameter_is_caught(change: Tree) -> None:
    given = {"config": "x.yml", "catalog": "x", "volume": "/Volumes/x", **change}
    with pytest.raises(SystemExit):
        jobs.parse_arguments([f"--{name}={value}" for name, value in given.items() if value is not None])


def test_data_outlives_the_production_bundle() -> None:
    tree = resources("prod")
    for kind in ("schemas", "volumes"):
        assert all(resource["lifecycle"]["prevent_destroy"] for resource in tree[kind].values())


@pytest.mark.parametrize("target", TARGETS)
def test_no_secret_stands_in_the_bundle(target: str) -> None:
    assert literal_secrets(merged(BUNDLE, {"resources": resources(target)})) == []


@pytest.mark.parametrize(
    ("kind", "path", "key"),
    [
        ("jobs", [], "max_concurent_runs"),
        ("jobs", ["continuous"], "pause_state"),
        ("jobs", ["health", "rules", 0], "treshold"),
        ("jobs", ["tasks", 0, "python_wheel_task"], "entrypoint"),
        ("schemas", [], "catalogue_name"),
        ("volumes", [], "volumetype"),
    ],
)
def test_a_misspelt_key_is_caught(kind: str, path: list[str | int], key: str) -> None:
    tree = resources("prod")
    node = next(iter(tree[kind].values()))
    for step in path:
        node = node[step]
    node[key] = "x"
    with pytest.raises(ValueError, match=key):
        validate(tree)


def test_an_undeclared_variable_is_caught() -> None:
    tree = resources("prod")
    tree["jobs"]["relay"]["name"] = "${var.catalgo}"
    assert unknown_references(tree, tree) == {"var.catalgo"}


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param({"sasl.password": "hunter2"}, id="a key that names a password"),
        pytest.param({"conf": "Endpoint=sb://x;SharedAccessKey=abc"}, id="a connection string"),
        pytest.param({"a": ["-----BEGIN PRIVATE KEY-----"]}, id="a private key in a list"),
    ],
)
def test_a_planted_secret_is_caught(planted: Tree) -> None:
    assert literal_secrets(planted)


def test_a_reference_to_a_secret_is_no_secret() -> None:
    assert literal_secrets({"sasl.password": "${secrets/scope/key}", "PASSWORD": "{{secrets/scope/key}}"}) == []
