"""References are resolved last, and nothing that prints shows a value."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.errors import UsageFault
from mirrorlake.secrets import Secret, SecretRef, is_literal, parts, redact, resolve


class Scopes:
    def get(self, scope: str, key: str) -> str:
        return {("prod", "hub"): "from-scope"}[scope, key]


@pytest.fixture
def secrets_file(tmp_path: Path) -> Path:
    path = tmp_path / "s.properties"
    path.write_text("# comment\n! too\nKEY=one=two\nspaced  :  three\nlong=a\\\n   b\nuni=\\u00e9\\ud83d\\ude00\n")
    return path


def test_text_without_references_stays_as_it_is() -> None:
    assert resolve("plain $HOME $ConnectionString {x}") == "plain $HOME $ConnectionString {x}"


def test_references_inside_text_are_replaced_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k1")
    assert resolve("Endpoint=x;Key=${env:A_KEY};${env:A_KEY}") == "Endpoint=x;Key=k1;k1"


def test_a_value_that_looks_like_a_reference_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "${env:HOME}")
    assert resolve("${env:A_KEY}") == "${env:HOME}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("KEY", "one=two", id="only the first = separates"),
        pytest.param("spaced", "three", id="a colon separates too, blanks around it do not count"),
        pytest.param("long", "ab", id="a backslash joins lines"),
        pytest.param("uni", "é😀", id="unicode escapes, surrogate pairs too"),
    ],
)
def test_one_key_of_a_properties_file_is_read_as_java_reads_it(secrets_file: Path, key: str, value: str) -> None:
    assert resolve(f"${{file:{secrets_file}:{key}}}") == value


def test_a_whole_file_is_stripped(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("  t0ken\n")
    assert resolve(f"${{file:{tmp_path}/token}}") == "t0ken"


def test_databricks_scopes_are_asked_through_the_given_object() -> None:
    assert resolve("${secret:prod/hub}", Scopes()) == "from-scope"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("${env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE", id="names the variable"),
        pytest.param("${file:/no/such/file:K}", "/no/such/file", id="names the file"),
        pytest.param("${secret:prod/hub}", "Databricks", id="says that there are no scopes here"),
        pytest.param("${vault:x}", "${env:NAME}", id="an unknown kind gets the syntax"),
        pytest.param("${NAME}", "${env:NAME}", id="a bare name gets the syntax"),
        pytest.param("${secret:prod}", "${secret:scope/key}", id="a scope without key gets the syntax"),
    ],
)
def test_what_cannot_be_found_says_where_it_was_looked_for(text: str, says: str) -> None:
    with pytest.raises(UsageFault) as caught:
        resolve(text)
    assert says in str(caught.value)


def test_a_missing_key_names_file_and_key_and_no_value(secrets_file: Path) -> None:
    with pytest.raises(UsageFault) as caught:
        resolve(f"${{file:{secrets_file}:NOPE}}")
    assert "NOPE" in str(caught.value)
    assert str(secrets_file) in str(caught.value)
    assert "three" not in str(caught.value)


def test_a_line_that_java_refuses_is_named_without_its_text(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("K=three\nP=hunter2\\uZZ\n")
    with pytest.raises(UsageFault) as caught:
        resolve(f"${{file:{tmp_path}/bad:K}}")
    assert "line 2" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_text_is_refused_without_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"hunter2\xff")
    with pytest.raises(UsageFault) as caught:
        resolve(f"${{file:{tmp_path}/binary}}")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_scope_that_fails_does_not_repeat_what_it_said() -> None:
    with pytest.raises(UsageFault) as caught:
        resolve("${secret:prod/other}", Scopes())
    assert "other" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("${env:A}", "Secret(${env:A})", id="a reference shows"),
        pytest.param("hunter2", "Secret(***)", id="a literal does not"),
        pytest.param("hun${env:A}ter2", "Secret(***${env:A}***)", id="nor does text around a reference"),
        pytest.param("${file:/p:K}${secret:s/k}", "Secret(${file:/p:K}${secret:s/k})", id="all kinds print as written"),
        pytest.param("", "Secret(***)", id="empty"),
    ],
)
def test_a_secret_prints_references_only(text: str, shown: str) -> None:
    secret = Secret(text)
    assert repr(secret) == str(secret) == f"{secret}" == shown


def test_pickle_carries_the_reference_and_not_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "hunter2")
    secret = Secret("${env:A_KEY}")
    assert secret.resolve() == "hunter2"
    pickled = pickle.dumps(secret)
    assert b"hunter2" not in pickled
    assert pickle.loads(pickled).resolve() == "hunter2"  # noqa: S301


def test_redact_hides_the_longest_value_first() -> None:
    assert redact("pass=abcdef, abc, none", ["abc", "abcdef", ""]) == "pass=***, ***, none"


@given(st.text())
def test_text_is_literal_exactly_where_it_has_no_reference(text: str) -> None:
    if is_literal(text):
        assert "".join(str(part) for part in parts(text)) == text


@given(st.sampled_from(["env", "file"]), st.text(st.characters(exclude_characters="}:"), min_size=1))
def test_a_reference_prints_as_it_is_written(kind: str, place: str) -> None:
    written = str(SecretRef(kind, place))
    assert parts(written) == [SecretRef(kind, place)]
