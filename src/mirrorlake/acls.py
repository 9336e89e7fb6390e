"""ACLs as on the source: which of them a target should have.

MM2's rules: ACLs of relayed topics by their full name; `allow write` is left out, since only the relay writes there;
`allow all` becomes `allow read`; denials are copied. Beyond them, by option: prefixes, groups, and taking away what
the source took away. We only ever take away what we gave, so `given` is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mirrorlake.config import AclSync
from mirrorlake.kafka import Acl


@dataclass(frozen=True)
class AclChanges:
    give: tuple[Acl, ...] = ()
    take: tuple[Acl, ...] = ()


def wanted_acls(
    source: Iterable[Acl], names: Mapping[str, str], rename_prefix: Callable[[str], str] | None, rules: AclSync
) -> set[Acl]:
    """The target's ACLs by the source's. `rename_prefix` is None where a naming policy does not keep prefixes."""
    topics = [acl for acl in source if acl.resource == "topic" and not _is(acl, "write")]
    found = {renamed(acl, names[acl.name]) for acl in topics if acl.pattern == "literal" and acl.name in names}
    if rules.prefixed and rename_prefix:
        found |= {renamed(acl, rename_prefix(acl.name)) for acl in topics if _covers_some(acl, names)}
    if rules.groups:
        found |= {acl for acl in source if acl.resource == "group" and (acl.pattern == "literal" or rules.prefixed)}
    return found


def _is(acl: Acl, operation: str) -> bool:
    return acl.permission == "allow" and acl.operation == operation


def _covers_some(acl: Acl, names: Iterable[str]) -> bool:
    return acl.pattern == "prefixed" and any(topic.startswith(acl.name) for topic in names)


def renamed(acl: Acl, name: str) -> Acl:
    return replace(acl, name=name, operation="read" if _is(acl, "all") else acl.operation)


def acl_changes(wanted: set[Acl], there: Iterable[Acl], given: Iterable[Acl], rules: AclSync) -> AclChanges:
    """What to give, and what to take away of what we once gave."""
    has = set(there)
    take = (set(given) & has) - wanted if rules.remove else set()
    return AclChanges(tuple(sorted(wanted - has)), tuple(sorted(take)))
