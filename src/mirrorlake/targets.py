"""What a target needs: looked at, planned, carried out. `plan` shows what `run` does, since both plan here.

What was not looked at is not planned: the relay looks at topics only, upkeep at configurations and ACLs when due,
`mirrorlake plan` at everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from mirrorlake.acls import AclChanges, acl_changes, wanted_acls
from mirrorlake.clusters import Limits, limits
from mirrorlake.config import Cluster as ClusterConfig
from mirrorlake.config import Config, Flow, Target
from mirrorlake.configsync import Changes, Settings, setting_changes, wanted_settings
from mirrorlake.errors import MirrorlakeError, Transient, Unreachable, UsageFault
from mirrorlake.kafka import Acl, Cluster, NewTopicSpec, TopicInfo
from mirrorlake.missing import Need, topics_needed
from mirrorlake.services import create_command, grow_command
from mirrorlake.topics import fit_names, prefix_renamer

_T = TypeVar("_T")


@dataclass(frozen=True)
class Wish:
    """What a flow wants of a target."""

    target: Target
    limits: Limits
    source: str
    """The source's alias."""
    names: Mapping[str, str]
    """Source topic -> target topic."""
    cluster: ClusterConfig | None = None
    """Where it goes, to print commands for its operator."""
    misnamed: Mapping[str, str] = field(default_factory=dict)
    """Source topic -> why it cannot have the name it should have."""
    given: Sequence[Acl] = ()
    """The ACLs that we once gave."""
    doomed: Mapping[str, str] = field(default_factory=dict)
    """Target topic whose source topic is gone -> when it is to be deleted."""


def make_wish(
    config: Config,
    flow: Flow,
    target: Target,
    topics: Iterable[str],
    given: Sequence[Acl] = (),
    doomed: Mapping[str, str] | None = None,
) -> Wish:
    names, misnamed = fit_names(config, flow, target, topics)
    cluster = config.clusters[target.cluster]
    return Wish(target, limits(cluster), flow.source, names, cluster, misnamed, given, doomed or {})


# --- looking ---


@dataclass(frozen=True)
class Side:
    """What one cluster says, as far as it was asked."""

    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    configs: Mapping[str, Settings] = field(default_factory=dict)
    acls: Sequence[Acl] | None = None


@dataclass(frozen=True)
class Look:
    """Both sides of a target's relay, and what they would not say."""

    source: Side
    target: Side
    declined: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Looker:
    """Asks two clusters. What is refused is written down, and the rest goes on; what passes by itself is raised."""

    source: Cluster
    cluster: Cluster
    wish: Wish
    declined: dict[str, str] = field(default_factory=dict)

    def __call__(self, topics: Mapping[str, TopicInfo], configs: bool = False, acls: bool = False) -> Look:
        existing, target = self.cluster.describe(self.wish.names.values()), self.wish.target
        there, here = self._configs(existing, configs and target.configs.enabled)
        theirs, ours = self._acls() if acls and target.acls.enabled else (None, None)
        return Look(Side(topics, there, theirs), Side(existing, here, ours), self.declined)

    def _configs(
        self, existing: Mapping[str, TopicInfo], whole: bool
    ) -> tuple[Mapping[str, Settings], Mapping[str, Settings]]:
        """Of all topics, or only of those that are to be made."""
        names = self.wish.names
        asked = [topic for topic, name in names.items() if name not in existing or (whole and self._may_alter())]
        compared = [names[topic] for topic in asked if names[topic] in existing]
        there = self._allowed("configurations of the source", lambda: self.source.topic_configs(asked))
        here = self._allowed("configurations", lambda: self.cluster.topic_configs(compared))
        return there or {}, here or {}

    def _may_alter(self) -> bool:
        if not self.wish.limits.can_alter_configs:
            self.declined["configurations"] = "this kind of cluster takes no topic configuration by its API"
        return self.wish.limits.can_alter_configs

    def _acls(self) -> tuple[Sequence[Acl] | None, Sequence[Acl] | None]:
        theirs = self._allowed("ACLs of the source", self.source.acls)
        if not theirs:
            return None, None
        ours = self._allowed("ACLs", self.cluster.acls)
        if ours is None:
            self.declined.setdefault("ACLs", "the target has no authorizer")
        return theirs, ours

    def _allowed(self, what: str, ask: Callable[[], _T]) -> _T | None:
        try:
            return ask()
        except Unreachable as fault:
            if isinstance(fault, Transient):
                raise
            self.declined[what] = fault.what
            return None


# --- planning: pure ---


@dataclass(frozen=True)
class TargetPlan:
    """The difference between what a target has and what it needs."""

    target: str
    creates: Mapping[str, int] = field(default_factory=dict)
    """Topic -> its partitions."""
    grows: Mapping[str, int] = field(default_factory=dict)
    folds: Mapping[str, int] = field(default_factory=dict)
    """Topic with fewer partitions than its source -> how many; a record goes to its partition modulo that number."""
    alters: Mapping[str, Changes] = field(default_factory=dict)
    """Topic -> key -> value, None to take the key back. A topic that is to be made is made with them."""
    acls: AclChanges = field(default_factory=AclChanges)
    deletes: Mapping[str, str] = field(default_factory=dict)
    """Topic whose source topic is gone -> when it is to be deleted."""
    misnamed: Mapping[str, str] = field(default_factory=dict)
    """Source topic -> why it cannot have the name it should have; `run` would stop for it."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Topic -> why it cannot be made or grown; `run` would stop for it."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Topic -> the command that makes or grows it, for an operator, where we may not."""
    declined: Mapping[str, str] = field(default_factory=dict)
    """What the clusters refuse to say or take, and `run` goes on without."""
    wanted: Mapping[str, Changes] = field(default_factory=dict, compare=False)
    """Topic -> what its configuration should be, as far as was looked at."""

    def lines(self) -> Iterator[str]:
        """What would be done, for people."""
        for name, count in self.creates.items():
            yield f"create topic {name} with {count} partitions{_told(self.alters.get(name, {}))}"
        for name, count in self.grows.items():
            yield f"grow topic {name} to {count} partitions"
        for name, count in self.folds.items():
            yield f"topic {name} keeps {count} partitions: a record goes to its partition modulo {count}"
        for name in self.alters.keys() - self.creates.keys():
            yield f"alter topic {name}{_told(self.alters[name])}"
        yield from (f"give ACL: {acl}" for acl in self.acls.give)
        yield from (f"take away ACL: {acl}" for acl in self.acls.take)
        yield from (f"delete topic {name} at {at}: its source is gone" for name, at in self.deletes.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "creates": dict(self.creates),
            "grows": dict(self.grows),
            "folds": dict(self.folds),
            "alters": {topic: dict(changes) for topic, changes in self.alters.items()},
            "acls": {"give": [asdict(acl) for acl in self.acls.give], "take": [asdict(acl) for acl in self.acls.take]},
            "deletes": dict(self.deletes),
            "refusals": {**self.misnamed, **self.refusals},
            "commands": dict(self.commands),
            "declined": dict(self.declined),
        }


def _told(changes: Changes) -> str:
    words = ", ".join(f"{key}={'(default)' if value is None else value}" for key, value in changes.items())
    return f": {words}" if words else ""


def plan_target(wish: Wish, look: Look) -> TargetPlan:
    existing, wanted = look.target.topics, _partitions(wish, look)
    missing = {name: count for name, count in wanted.items() if name not in existing}
    short = {name: count for name, count in wanted.items() if name in existing and existing[name].partitions < count}
    folding = _folds(wish)
    refused = _not_made(wish, missing) | ({} if folding else _not_grown(wish, short))
    settings = _wanted_settings(wish, look)
    return TargetPlan(
        wish.target.cluster,
        {name: count for name, count in missing.items() if name not in refused},
        {name: count for name, count in short.items() if name not in refused and not folding},
        {name: existing[name].partitions for name in short} if folding else {},
        _alters(settings, look, refused),
        _acls(wish, look),
        wish.doomed,
        wish.misnamed,
        refused,
        _commands(wish, {name: wanted[name] for name in refused}, existing),
        look.declined,
        settings,
    )


def _partitions(wish: Wish, look: Look) -> dict[str, int]:
    """Target topic -> the partitions it should have: the source's, or as many as there can be where they may fold."""
    source, most = look.source.topics, wish.limits.max_partitions
    wanted = {name: source[topic].partitions for topic, name in wish.names.items() if topic in source}
    return {name: min(count, most) for name, count in wanted.items()} if most and _folds(wish) else wanted


def _folds(wish: Wish) -> bool:
    return wish.target.partitions == "modulo"


def _not_made(wish: Wish, missing: Mapping[str, int]) -> dict[str, str]:
    why = "may not be made here (create_topics, or the kind of cluster)"
    may = wish.target.create_topics and wish.limits.can_create_topics
    return {name: _needs(count, why) for name, count in missing.items() if not may} | _too_many(wish, missing)


def _not_grown(wish: Wish, short: Mapping[str, int]) -> dict[str, str]:
    why = "may not grow here (create_topics, or the kind of cluster); `partitions: modulo` would do with fewer"
    may = wish.target.create_topics and wish.limits.can_add_partitions
    return {name: _needs(count, why) for name, count in short.items() if not may} | _too_many(wish, short)


def _too_many(wish: Wish, wanted: Mapping[str, int]) -> dict[str, str]:
    most = wish.limits.max_partitions
    why = f"may have {most} at most; `partitions: modulo` would do with fewer"
    return {name: _needs(count, why) for name, count in wanted.items() if most and count > most}


def _needs(count: int, why: str) -> str:
    return f"needs {count} partitions and {why}"


def _commands(wish: Wish, refused: Mapping[str, int], existing: Mapping[str, TopicInfo]) -> dict[str, str]:
    if wish.cluster is None:
        return {}
    factor = wish.target.replication_factor
    return {
        name: grow_command(wish.cluster, name, count)
        if name in existing
        else create_command(wish.cluster, name, count, factor)
        for name, count in refused.items()
    }


def _wanted_settings(wish: Wish, look: Look) -> dict[str, Changes]:
    known = {name: look.source.configs[topic] for topic, name in wish.names.items() if topic in look.source.configs}
    return {name: wanted_settings(settings, wish.target.configs) for name, settings in known.items()}


def _alters(wanted: Mapping[str, Changes], look: Look, refused: Mapping[str, str]) -> dict[str, Changes]:
    """For topics that are to be made, and for those whose configuration was looked at."""
    at_hand = {
        name: look.target.configs.get(name, {})
        for name in wanted
        if name not in refused and (name not in look.target.topics or name in look.target.configs)
    }
    found = {name: setting_changes(wanted[name], there) for name, there in sorted(at_hand.items())}
    return {name: changes for name, changes in found.items() if changes}


def _acls(wish: Wish, look: Look) -> AclChanges:
    if look.source.acls is None or look.target.acls is None:
        return AclChanges()
    rules, rename_prefix = wish.target.acls, prefix_renamer(wish.target, wish.source)
    wanted = wanted_acls(look.source.acls, wish.names, rename_prefix, rules)
    return acl_changes(wanted, look.target.acls, wish.given, rules)


# --- carrying out ---


def make_topics(cluster: Cluster, target: Target, plan: TargetPlan) -> None:
    """Make and grow topics; where one cannot be, nothing is done."""
    require_makeable(plan)
    make_what_can_be(cluster, target, plan)


def make_what_can_be(cluster: Cluster, target: Target, plan: TargetPlan) -> None:
    """Make and grow topics, but for those that only an operator can."""
    refuse_misnamed(plan.target, plan.misnamed)
    cluster.create_topics(
        NewTopicSpec(name, partitions, target.replication_factor, _set_only(plan.alters.get(name, {})))
        for name, partitions in plan.creates.items()
    )
    cluster.grow_topics(plan.grows)


def needs(plan: TargetPlan) -> dict[str, Need]:
    """By target topic."""
    return {name: Need(name, why, plan.commands.get(name, "")) for name, why in plan.refusals.items()}


def require_makeable(plan: TargetPlan) -> None:
    """Refuse what cannot be carried out, before anything is."""
    refuse_misnamed(plan.target, plan.misnamed)
    if plan.refusals:
        raise topics_needed(plan.target, needs(plan).values())


def refuse_misnamed(target: str, misnamed: Mapping[str, str]) -> None:
    for topic, reason in misnamed.items():
        raise UsageFault(
            f"cluster {target}: topic {topic} {reason}",
            "choose another naming policy or separator, or exclude the topic",
        )


def _set_only(changes: Changes) -> dict[str, str]:
    return {key: value for key, value in changes.items() if value is not None}


@dataclass(frozen=True)
class Failures:
    """What a target did not take."""

    configs: Mapping[str, MirrorlakeError] = field(default_factory=dict)
    acls: Mapping[Acl, MirrorlakeError] = field(default_factory=dict)


def bring_in_step(cluster: Cluster, plan: TargetPlan) -> Failures:
    """Configurations and ACLs, of topics that are there."""
    there = {name: changes for name, changes in plan.alters.items() if name not in plan.creates}
    acls = cluster.create_acls(plan.acls.give) | cluster.delete_acls(plan.acls.take)
    return Failures(cluster.alter_configs(there), acls)
