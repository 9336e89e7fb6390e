"""java.util.Properties, line by line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.properties import decode, parse, repeats

SAMPLES = {
    "equals": ("a=b", {"a": "b"}),
    "colon": ("a:b", {"a": "b"}),
    "blank": ("a b", {"a": "b"}),
    "blanks around": ("  a \t=\f b ", {"a": "b "}),
    "two separators": ("a = = b", {"a": "= b"}),
    "blank then colon": ("a :b", {"a": "b"}),
    "key alone": ("a", {"a": ""}),
    "nothing after the separator": ("a=", {"a": ""}),
    "empty key": ("=b", {"": "b"}),
    "comments": ("# a=b\n  ! c=d\ne=f", {"e": "f"}),
    "no comment within a value": ("a=b # c", {"a": "b # c"}),
    "escaped separator in a key": (r"a\=b\:c\ d=e", {"a=b:c d": "e"}),
    "arrow": ("A->B.topics = x", {"A->B.topics": "x"}),
    "continuation": ("a=b,\\\n   c,\\\r\n\td", {"a": "b,c,d"}),
    "a comment mark in a continued line": ("a=b\\\n#c", {"a": "b#c"}),
    "two backslashes do not continue": ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    "three backslashes do": ("a=b\\\\\\\nc", {"a": "b\\c"}),
    "a blank line ends a continuation": ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    "a continuation into the end": ("a=b\\", {"a": "b"}),
    "a lone backslash before a comment": ("\\\n#x\na=b", {"a": "b"}),
    "continued separator": ("a\\\n=b", {"a": "b"}),
    "escapes": (r"a=\t\n\r\f\\\q\"", {"a": '\t\n\r\f\\q"'}),
    "unicode": ("a=\\u00e4\\u20AC", {"a": "ä€"}),
    "surrogates": ("a=\\ud83d\\ude00", {"a": "😀"}),
    "last one counts": ("a=1\na=2", {"a": "2"}),
    "carriage returns": ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
    "no end of file marks": ("", {}),
    "vertical tab is no blank": ("a\vb=c", {"a\vb": "c"}),
    "jaas": ('x=m required \\\n  username="u" \\\n  password="p";', {"x": 'm required username="u" password="p";'}),
}


@pytest.mark.parametrize(("text", "values"), SAMPLES.values(), ids=SAMPLES.keys())
def test_it_reads_as_java_does(text: str, values: dict[str, str]) -> None:
    assert parse(text).values() == values


def test_every_key_has_its_line() -> None:
    text = "# c\n\na=1\\\n2\nb=3\r\n\r\nc=4"
    assert [(each.line, each.key) for each in parse(text).properties] == [(3, "a"), (5, "b"), (7, "c")]


@pytest.mark.parametrize("value", [r"\u12", r"\u12g4", r"\u", r"\u 123"])
def test_a_broken_escape_is_named_by_its_line_without_its_text(value: str) -> None:
    parsed = parse(f"a=1\npassword=hunter2{value}\nb=2")
    assert [bad.line for bad in parsed.malformed] == [2]
    assert "hunter2" not in str(parsed.malformed)
    assert parsed.values() == {"a": "1", "b": "2"}


def test_repeated_keys_are_told() -> None:
    found = repeats(parse("a=1\nb=2\na=3").properties)
    assert {key: [each.line for each in lines] for key, lines in found.items()} == {"a": [1, 3]}


def test_bytes_are_latin_1_as_in_java() -> None:
    assert parse(decode("a=ä".encode())).values() == {"a": "Ã¤"}


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    parsed = parse(text)
    assert all(1 <= each.line <= len(text) + 1 for each in parsed.properties)


TRICKY = st.text(st.sampled_from("ab\\\\\\=: \t\f\n\r#!u0041\v\x85ä"), max_size=30)
JAVA = """
import java.io.*; import java.util.*; import java.nio.charset.StandardCharsets;
public class Read {
  public static void main(String[] args) throws Exception {
    DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
    PrintStream out = new PrintStream(System.out, false, "US-ASCII");
    for (int n = in.readInt(); n > 0; n--) {
      byte[] text = new byte[in.readInt()]; in.readFully(text);
      Properties p = new Properties();
      try { p.load(new StringReader(new String(text, StandardCharsets.UTF_8))); } catch (IllegalArgumentException bad) {
        out.println("null"); continue; }
      StringBuilder line = new StringBuilder("{");
      for (String key : p.stringPropertyNames()) {
        if (line.length() > 1) line.append(",");
        line.append(quote(key)).append(":").append(quote(p.getProperty(key))); }
      out.println(line.append("}")); }
    out.flush(); }
  static String quote(String s) {
    StringBuilder b = new StringBuilder("\\"");
    for (char c : s.toCharArray()) b.append(String.format("\\\\u%04x", (int) c));
    return b.append("\\"").toString(); } }
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="no java")
def test_the_real_java_agrees(tmp_path: Path) -> None:
    """One JVM for all texts: those above, and some hundreds made up."""
    import random

    source = random.Random(7)  # noqa: S311
    alphabet = "ab\\\\\\=: \t\f\n\r#!\v\x85ä"
    made_up = ["".join(source.choices(alphabet, k=source.randrange(25))) for _ in range(3000)]
    made_up += [text + "\\u004" + text[:1] for text in made_up[:200]]
    texts = [text for text, _ in SAMPLES.values()] + made_up
    (tmp_path / "Read.java").write_text(JAVA)
    packed = b"".join(len(raw).to_bytes(4, "big") + raw for raw in (text.encode() for text in texts))
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", str(tmp_path / "Read.java")],
        input=len(texts).to_bytes(4, "big") + packed, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
    ours = [None if (parsed := parse(text)).malformed else parsed.values() for text in texts]
    different = [(text, a, b) for text, a, b in zip(texts, ours, answers, strict=True) if a != b]
    assert different[:8] == []


@given(TRICKY)
def test_tricky_text_is_read_without_an_error(text: str) -> None:
    parse(text)
