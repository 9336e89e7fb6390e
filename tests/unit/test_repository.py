"""What must be true of the repository as a whole."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {
    ".ci", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "conf", "constraints.txt",
    "databricks.yml", "docs", "pyproject.toml", "resources", "src", "tests",
}  # fmt: skip
ALLOWED = REQUIRED | {
    ".editorconfig", ".gitattributes", ".gitignore", ".pre-commit-config.yaml", "benchmarks", "notebooks",
}  # fmt: skip
# The namespace of Maven's own file format (".../POM/4.0.0") is no host anybody is sent to.
REGISTRY = re.compile(r"https?://[a-z0-9.-]*(?:maven|pypi|npmjs|pythonhosted|debian)[a-z0-9.-]*(?!\S*/POM/)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def repository_files() -> list[Path]:
    """What is committed or would be: files that git knows or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def named_hosts(text: str) -> list[str]:
    return [match.group(0) for match in REGISTRY.finditer(text)]


def prose(markdown: str) -> str:
    """Markdown without its code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", markdown, flags=re.S | re.M))


def local_links(path: Path) -> Iterator[str]:
    for target in LINK.findall(prose(text_of(path))):
        if not re.match(r"[a-z]+:|#", target):
            yield target.split("#")[0]


def markdown_pages() -> list[Path]:
    return sorted(path for path in repository_files() if path.suffix == ".md")


def test_no_registry_is_named() -> None:
    found = {str(path.relative_to(ROOT)): named_hosts(text_of(path)) for path in repository_files()}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}


def test_no_path_of_this_machine_is_named() -> None:
    assert [path for path in repository_files() if f"{ROOT}/" in text_of(path)] == []


def test_the_top_level_is_what_the_design_says() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in repository_files()}
    assert REQUIRED - top == set(), "missing"
    assert top - ALLOWED == set(), "unexpected"


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_says_how_to_begin(command: str) -> None:
    assert command in text_of(ROOT / "README.md")


@pytest.mark.parametrize("page", markdown_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [link for link in local_links(page) if not (page.parent / link).exists()] == []


def test_every_decision_is_in_the_index() -> None:
    decisions = ROOT / "docs" / "decisions"
    pages = {path.name for path in decisions.glob("[0-9]*.md")}
    assert pages <= set(local_links(decisions / "README.md"))


@pytest.mark.parametrize("host", ["repo.maven.example", "pypi.example", "deb.debian.example"])
def test_a_registry_is_caught(host: str) -> None:
    assert named_hosts(f"see http{'s'}://{host}/x")


def test_a_namespace_of_maven_is_let_through() -> None:
    assert named_hosts(f"http{''}://maven.apache.example/POM/4.0.0") == []


def test_a_broken_link_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md#part) [b](https://x.example) [c](#here) `[d](code.md)`\n")
    assert list(local_links(page)) == ["gone.md"]
