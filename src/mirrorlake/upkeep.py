"""Beside the copying: configurations and ACLs kept as on the source, heartbeats; each at its own interval."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mirrorlake.acls import AclChanges
from mirrorlake.config import Flow, Target
from mirrorlake.configsync import Changes, drifted
from mirrorlake.control import write_json
from mirrorlake.errors import MirrorlakeError, Transient
from mirrorlake.heartbeats import Heart
from mirrorlake.kafka import Acl
from mirrorlake.records import SourcePartition
from mirrorlake.targets import Failures, Look, Looker, TargetPlan, bring_in_step, make_wish, plan_target
from mirrorlake.topics import flow_topics
from mirrorlake.world import Say, World
from mirrorlake.writings import Writings

WHOLE_TOPIC = -1
"""In place of a partition and of offsets, where an incident is about a topic."""


class Every:
    """True once in a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic()

    def due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True


@dataclass
class Upkeep:
    """One flow and target."""

    world: World
    flow: Flow
    target: Target
    say: Say
    _before: dict[str, Changes] = field(default_factory=dict)
    """Topic -> what the source asked of its configuration when we last looked."""
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._configs = Every(self.target.configs.every_seconds)
        self._acls = Every(self.target.acls.every_seconds)
        self._beats = Every(self.flow.heartbeats.every_seconds)
        self._heart = self._make_heart()
        self._writings = Writings(self.world, self.flow.name)

    def _make_heart(self) -> Heart | None:
        beats, world = self.flow.heartbeats, self.world
        ends = (self.flow.source, self.target.cluster)
        return Heart(world.config, world.clusters, *ends, beats.replication_factor) if beats.enabled else None

    def beat(self) -> None:
        """One heartbeat at each end that is there, and its topic where it is missing."""
        if self._heart and self._beats.due():
            self._heart.beat(self.world.cluster_ids)
            for alias, reason in self._heart.refused.items():
                self._tell_once(f"no heartbeats on {alias}: {reason}")

    def tend(self) -> None:
        """Do what is due. A target that is away for now is left alone."""
        self.beat()
        if self.target.cluster not in self.world.cluster_ids:
            return
        configs = self.target.configs.enabled and self._configs.due()
        acls = self.target.acls.enabled and self._acls.due()
        if configs or acls:
            self._sync(configs, acls)

    def _sync(self, configs: bool, acls: bool) -> None:
        source, cluster = self.world.clusters[self.flow.source], self.world.clusters[self.target.cluster]
        given = read_given(self.world.root, self.flow.name, self.target.cluster)
        topics = source.describe(flow_topics(self.world.config, self.flow, source.topic_names()))
        wish = make_wish(self.world.config, self.flow, self.target, topics, given)
        look = Looker(source, cluster, wish)(topics, configs, acls)
        plan = plan_target(wish, look)
        failed = bring_in_step(cluster, plan)
        self._remember_given(given, plan.acls, failed)
        self._report(plan, look, failed)

    def _remember_given(self, given: Sequence[Acl], changes: AclChanges, failed: Failures) -> None:
        gave, took = set(changes.give) - failed.acls.keys(), set(changes.take) - failed.acls.keys()
        if gave or took:
            write_given(self.world.root, self.flow.name, self.target.cluster, (set(given) | gave) - took)

    # --- telling ---

    def _report(self, plan: TargetPlan, look: Look, failed: Failures) -> None:
        strange = drifted(plan.alters, plan.wanted, self._before)
        for topic in plan.alters.keys() - plan.creates.keys() - failed.configs.keys():
            self._say_changes(topic, plan.alters[topic], look, strange.get(topic, []))
        for word, acls in (("given", plan.acls.give), ("taken away", plan.acls.take)):
            for acl in set(acls) - failed.acls.keys():
                self.say(f"target {self.target.cluster}: ACL {word}: {acl}")
        for what, reason in plan.declined.items():
            self._tell_once(f"target {self.target.cluster}: {what} are left alone: {reason}")
        for topic, fault in failed.configs.items():
            self._refused(topic, fault)
        for acl, fault in failed.acls.items():
            self._refused(acl.name, fault)
        self._before.update(plan.wanted)

    def _say_changes(self, topic: str, changes: Changes, look: Look, strange: Sequence[str]) -> None:
        for key, value in changes.items():
            was = look.target.configs[topic][key].value if key in look.target.configs.get(topic, {}) else None
            text = f"{key} was {was}, {self.flow.source} says {'the default' if value is None else value}"
            self.say(f"target {self.target.cluster}: topic {topic}: {text}")
            if key in strange:
                self._incident("config_drift", topic, f"{text}: put right")

    def _refused(self, topic: str, fault: MirrorlakeError) -> None:
        """A refusal is an incident, once; what passes by itself is tried again at the next round."""
        refused = not isinstance(fault, Transient)
        if self._tell_once(f"{'refused' if refused else 'waiting'}: {fault.what}") and refused:
            self._incident("sync_refused", topic, fault.what)

    def _tell_once(self, text: str) -> bool:
        new = text not in self._told
        self._told.add(text)
        if new:
            self.say(text)
        return new

    def _incident(self, kind: str, topic: str, detail: str) -> None:
        nowhere = SourcePartition(topic, "", WHOLE_TOPIC)
        self._writings.incident(kind, self.target.cluster, nowhere, WHOLE_TOPIC, WHOLE_TOPIC, detail)


# --- the ACLs that we gave, so that we never take away what others gave ---


def _given_path(root: Path, flow: str, target: str) -> Path:
    return root / "acls" / f"{flow}.{target}.json"


def read_given(root: Path, flow: str, target: str) -> list[Acl]:
    path = _given_path(root, flow, target)
    return [Acl(**item) for item in json.loads(path.read_text())] if path.exists() else []


def write_given(root: Path, flow: str, target: str, acls: set[Acl]) -> None:
    write_json(_given_path(root, flow, target), [asdict(acl) for acl in sorted(acls)])
