"""Names go there and back, never meet, and are safe as paths whatever the file system."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorlake.errors import UsageFault
from mirrorlake.names import (
    MAX_ALIAS_CHARACTERS,
    MAX_TABLE_CHARACTERS,
    IdenticalNames,
    PrefixedNames,
    escape_alias,
    escape_topic,
    is_cycle,
    is_legal_topic,
    naming_policy,
    table_name,
    unescape_topic,
)

LEGAL = string.ascii_letters + string.digits + "._-"
TOPICS = st.text(LEGAL, min_size=1, max_size=249)
# Few characters, so that the tricky neighbours meet often.
TRICKY = st.text("aAzudhc_.-", min_size=1, max_size=8)
ALIASES = st.text(LEGAL, min_size=1, max_size=100).filter(lambda alias: alias[0].isalnum())
TRICKY_ALIASES = st.text("aA_.-u", max_size=6).map(lambda rest: "a" + rest)
TEMPLATE = "bronze.{source}__{topic}"


@given(st.text(LEGAL, min_size=1, max_size=40) | TRICKY)
@example("_")
@example("__")
@example("a__d.b")
@example(LEGAL)
def test_an_escaped_topic_comes_back(topic: str) -> None:
    assert unescape_topic(escape_topic(topic)) == topic


@given(st.lists(TRICKY | TOPICS, min_size=2, max_size=30, unique=True))
def test_distinct_topics_have_distinct_names_whatever_their_case(topics: list[str]) -> None:
    assert len({escape_topic(topic).casefold() for topic in topics}) == len(topics)


@given(TOPICS)
def test_an_escaped_topic_is_plain_and_bounded(topic: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]+", escape_topic(topic))
    assert len(escape_topic(topic)) <= MAX_TABLE_CHARACTERS


@pytest.mark.parametrize(
    ("topic", "escaped"),
    [
        ("orders", "orders"),
        ("order_lines", "order_lines"),
        ("orders.v1", "orders__dv1"),
        ("Orders", "__corders"),
        ("a-b", "a__hb"),
        ("a_", "a__u"),
        ("a__b", "a__u_b"),
        ("a_B", "a__u__cb"),
    ],
)
def test_escapes_read_well(topic: str, escaped: str) -> None:
    assert escape_topic(topic) == escaped


@pytest.mark.parametrize(
    "alias", ["src", "us_east_1", "dc_20260101", "20260101", "a_559aead", "deadbeef", "a_deadbeefs"]
)
def test_an_ordinary_alias_stays_as_it_is(alias: str) -> None:
    assert escape_alias(alias) == alias


def test_a_name_that_had_to_be_shortened_says_so() -> None:
    first, second = "A" * 200 + "1", "A" * 200 + "2"
    assert escape_topic(first) != escape_topic(second)
    with pytest.raises(ValueError, match=r"mirrorlake\.topic"):
        unescape_topic(escape_topic(first))


@given(ALIASES | TRICKY_ALIASES)
def test_an_escaped_alias_is_plain_bounded_and_has_no_double_underscore(alias: str) -> None:
    escaped = escape_alias(alias)
    assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", escaped)
    assert len(escaped) <= MAX_ALIAS_CHARACTERS


@given(
    st.lists(
        st.tuples(TRICKY_ALIASES | ALIASES, TRICKY | TOPICS),
        min_size=2,
        max_size=20,
        unique=True,
    )
)
@example([("a", "_b"), ("a_", "b")])
@example([("src", "x"), ("SRC", "x")])
@example([("a__b", "c"), ("a", "b__c")])
@example([("A", "x"), ("a_559aead0", "x")])
@example([("A", "x"), ("a_559aead0", "x"), (escape_alias("a_559aead0"), "x")])
def test_distinct_pairs_of_alias_and_topic_have_distinct_tables(pairs: list[tuple[str, str]]) -> None:
    names = {table_name(TEMPLATE, alias, topic).casefold() for alias, topic in pairs}
    assert len(names) == len(pairs)


@given(ALIASES, TOPICS)
def test_a_table_is_one_path_component_of_at_most_255_bytes(alias: str, topic: str) -> None:
    schema, _, table = table_name(TEMPLATE, alias, topic).partition(".")
    assert schema == "bronze"
    assert re.fullmatch(r"\w+", table, re.ASCII)
    assert len(table.encode()) <= 255


@given(ALIASES, TRICKY)
def test_the_first_double_underscore_parts_alias_and_topic(alias: str, topic: str) -> None:
    escaped, _, rest = table_name("{source}__{topic}", alias, topic).partition("__")
    assert (escaped, unescape_topic(rest)) == (escape_alias(alias), topic)


@pytest.mark.parametrize(
    ("topic", "legal"),
    [("a", True), ("a.b_C-9", True), ("", False), (".", False), ("..", False), ("...", True), ("a b", False),
     ("ä", False), ("a\n", False), ("a" * 249, True), ("a" * 250, False), ("a/b", False)],
)  # fmt: skip
def test_topics_are_legal_as_in_kafka(topic: str, legal: bool) -> None:
    assert is_legal_topic(topic) is legal


# --- naming policies ---


@given(st.text(string.ascii_lowercase, min_size=1), TOPICS)
def test_a_prefixed_name_says_its_source_and_goes_back(alias: str, topic: str) -> None:
    policy = PrefixedNames()
    name = policy.target_topic(alias, topic)
    assert (policy.source_of(name), policy.upstream_topic(name)) == (alias, topic)


@pytest.mark.parametrize(
    ("name", "source", "upstream"),
    [
        ("orders", None, None),
        ("src.orders", "src", "orders"),
        ("src.", None, None),
        ("a.b.c", "a", "b.c"),
        (".orders", "", "orders"),
    ],
)
def test_a_prefix_is_what_stands_before_the_first_separator(
    name: str, source: str | None, upstream: str | None
) -> None:
    assert PrefixedNames().source_of(name) == source
    assert PrefixedNames().upstream_topic(name) == upstream


def test_the_separator_may_be_any_text() -> None:
    policy = PrefixedNames("__")
    assert policy.target_topic("src", "a.b") == "src__a.b"
    assert policy.source_of("src__a.b") == "src"


def test_identical_names_have_no_source() -> None:
    policy = IdenticalNames()
    assert policy.target_topic("src", "t") == policy.upstream_topic("t") == "t"
    assert policy.source_of("src.t") is None


class Shouting(IdenticalNames):
    def target_topic(self, source: str, topic: str) -> str:
        return topic.upper()


def test_policies_are_chosen_by_name() -> None:
    assert naming_policy("default", "-").target_topic("a", "t") == "a-t"
    assert naming_policy("identity", ".").target_topic("a", "t") == "t"
    assert naming_policy(f"python:{__name__}:Shouting", ".").target_topic("a", "t") == "T"


@pytest.mark.parametrize("path", ["no_such_module:X", f"{__name__}:NoSuchClass", "mirrorlake.names:escape_topic"])
def test_a_policy_that_cannot_be_loaded_is_refused(path: str) -> None:
    with pytest.raises(UsageFault, match=re.escape(path)):
        naming_policy(f"python:{path}", ".")


# --- cycles ---

ALL = frozenset({"a", "b", "c"})


@pytest.mark.parametrize(
    ("topic", "target", "cycle"),
    [
        ("orders", "b", False),
        ("b.orders", "b", True),
        ("c.orders", "b", False),
        ("c.b.orders", "b", True),
        ("a.c.b.orders", "b", True),
        ("c.a.orders", "b", False),
        ("orders.v1", "b", False),
        # MM2 would leave this one out without a word: to it every topic with a dot looks relayed.
        ("logs.b.daily", "b", False),
        ("b.", "b", False),
    ],
)
def test_prefixed_names_show_cycles_over_any_number_of_hops(topic: str, target: str, cycle: bool) -> None:
    assert is_cycle(PrefixedNames(), topic, target, ALL) is cycle


def test_identical_names_never_show_a_cycle() -> None:
    assert not is_cycle(IdenticalNames(), "b.orders", "b", ALL)


class Fixed(IdenticalNames):
    """MM2's identity policy: the source is configured, the upstream name is the same."""

    def source_of(self, topic: str) -> str | None:
        return "a"


def test_a_policy_whose_upstream_is_the_same_name_ends() -> None:
    assert not is_cycle(Fixed(), "orders", "b", ALL)
    assert is_cycle(Fixed(), "orders", "a", ALL)
