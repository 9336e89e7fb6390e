"""Which ACLs a target should have: MM2's rules, and the options beyond them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirrorlake.acls import AclChanges, acl_changes, wanted_acls
from mirrorlake.config import AclSync
from mirrorlake.kafka import Acl

NAMES = {"orders": "src.orders", "orders-eu": "src.orders-eu"}
READ = Acl("topic", "orders", "User:ann", "read")
PREFIX = Acl("topic", "orders", "User:ann", "read", pattern="prefixed")
GROUP = Acl("group", "billing", "User:ann", "read")


def wanted(*acls: Acl, keeps_prefixes: bool = True, **rules: Any) -> set[Acl]:
    return wanted_acls(acls, NAMES, (lambda name: f"src.{name}") if keeps_prefixes else None, AclSync(**rules))


@pytest.mark.parametrize(
    ("operation", "permission", "becomes"),
    [
        ("read", "allow", "read"),
        ("describe", "allow", "describe"),
        ("all", "allow", "read"),
        ("write", "allow", None),
        ("write", "deny", "write"),
        ("all", "deny", "all"),
        ("alter_configs", "allow", "alter_configs"),
    ],
)
def test_readers_stay_readers_and_nobody_else_may_write(operation: str, permission: str, becomes: str | None) -> None:
    asked = replace(READ, operation=operation, permission=permission, host="10.0.0.1")
    expected = {replace(asked, name="src.orders", operation=becomes)} if becomes else set()
    assert wanted(asked) == expected


@pytest.mark.parametrize(
    "acl",
    [
        pytest.param(replace(READ, name="payments"), id="a topic that is not relayed"),
        pytest.param(replace(READ, name="*"), id="all topics"),
        pytest.param(PREFIX, id="a prefix"),
        pytest.param(GROUP, id="a group"),
    ],
)
def test_nothing_else_is_copied_by_default(acl: Acl) -> None:
    assert wanted(acl) == set()


def test_prefixes_are_copied_where_asked_for_and_where_they_cover_a_relayed_topic() -> None:
    write, elsewhere = replace(PREFIX, operation="write"), replace(PREFIX, name="pay")
    assert wanted(PREFIX, write, elsewhere, prefixed=True) == {replace(PREFIX, name="src.orders")}
    assert wanted(PREFIX, prefixed=True, keeps_prefixes=False) == set(), "a policy of one's own"


def test_groups_are_copied_as_they_are() -> None:
    whole, prefix = replace(GROUP, operation="all"), replace(GROUP, name="bill", pattern="prefixed")
    assert wanted(GROUP, whole, prefix, groups=True) == {GROUP, whole}
    assert wanted(prefix, groups=True, prefixed=True) == {prefix}


MINE, THEIRS = replace(READ, name="src.orders"), replace(READ, name="src.orders", principal="User:local")


def test_only_what_is_missing_is_given_and_nothing_is_taken_away_by_default() -> None:
    assert acl_changes({MINE}, [THEIRS], [], AclSync()) == AclChanges((MINE,))
    assert acl_changes(set(), [MINE, THEIRS], [MINE], AclSync()) == AclChanges()


def test_what_we_gave_is_taken_away_and_what_others_gave_stays() -> None:
    rules = AclSync(remove=True)
    assert acl_changes(set(), [MINE, THEIRS], [MINE], rules) == AclChanges((), (MINE,))
    assert acl_changes({MINE}, [MINE, THEIRS], [MINE], rules) == AclChanges()
    assert acl_changes(set(), [THEIRS], [MINE], rules) == AclChanges(), "gone already"
