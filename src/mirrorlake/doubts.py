"""Whether a target has what the ledger says, asked at a start and after any doubt; what landed unrecorded is entered.

A target partition that diverged is halted, and the others go on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

from mirrorlake.account import Account
from mirrorlake.errors import TargetDiverged, TopicRemade
from mirrorlake.failpoints import hit
from mirrorlake.kafka import ABSENT_SECONDS, TopicInfo, await_stable_ends, is_compacted
from mirrorlake.lease import EXPIRY, LEASE_SECONDS, await_no_producers
from mirrorlake.ledger import Entry, Position
from mirrorlake.records import SourcePartition, TopicPartition
from mirrorlake.recovery import Circumstances, Log, Recovered, recover, set_aside
from mirrorlake.rounds import due_segments

STABLE_SECONDS = 2.0
Held = Mapping[SourcePartition, Position]


@dataclass
class Doubts:
    """Of one target of one bronze table."""

    account: Account
    history: Callable[[], Sequence[Entry]]
    """All that the ledger says of this target: asked for where records landed that were not due."""
    begin: Callable[[], None] = lambda: None
    """Gives those a baseline that the book does not know."""
    stopped_cleanly: bool = False
    """The runner before us ended in order, so nothing of it can still land."""
    mends: bool = False
    """Records that are missing before others are set aside for a repair; otherwise they halt their partition."""
    recreate: bool = False
    """A target topic that was made anew is filled from bronze, by a run that has not sent to it yet."""
    stopping: Event = field(default_factory=Event)
    settled: bool = False
    """Is it known what the target has?"""
    abandoned_until: float | None = None
    """Until then a task may still send that a round has left behind, and that holds no lock."""

    def settle(self) -> None:
        """Compare the ledger with the target's logs; write down what landed unrecorded."""
        self._outlive_senders()
        if self.account.book.positions:
            self._check_topic_ids()
            self.account.learn_limits()  # what was too large was left out, and is no hole
            for found in self._recover_all():
                hit("tail-read")
                self._take(found)
            hit("tail-noted")
            self.account.ledger.flush()
            self._require_some()
        self.settled = True

    def arise_from(self, seen: Mapping[str, TopicInfo]) -> bool:
        """Look at the target before the next round, if its topics are not those that we fill."""
        known = [position for position in self.account.going().values() if position.target_partition.topic in seen]
        doubtful = any(is_another_topic(position, seen) for position in known)
        if doubtful:  # and nothing else: a round may be finding doubts of its own meanwhile
            self.settled = False
        return doubtful

    def _outlive_senders(self) -> None:
        """A failed round's other tasks may still be sending."""
        if lock := self.account.errand.lock:
            await_no_producers(Path(lock), 60)
        elif self.abandoned_until is not None:
            self.stopping.wait(max(0.0, self.abandoned_until - time.time() + LEASE_SECONDS * EXPIRY))
            self.abandoned_until = None

    def _require_some(self) -> None:
        """Where nothing is left that could go on, the target stops; and whoever mends is told at once."""
        halted = self.account.halted
        if halted and (self.mends or not self.account.going()):
            raise next(iter(halted.values()))

    # --- topics ---

    def _check_topic_ids(self) -> None:
        going = self.account.going()
        asked = {position.target_partition.topic for position in going.values()}
        seen = self.account.cluster.describe_patiently(asked, ABSENT_SECONDS)
        remade = {source: position for source, position in going.items() if is_another_topic(position, seen)}
        if remade and self.recreate and not remade.keys() & self.account.touched:
            return self._begin_anew(remade)
        for source, position in remade.items():
            fault = self._remade(position, seen)
            self.account.halt({source: position}, position.target_partition, fault)
            if isinstance(fault, TopicRemade):
                raise fault  # the next epoch fills it

    def _remade(self, position: Position, seen: Mapping[str, TopicInfo]) -> TargetDiverged:
        name, errand = position.target_partition.topic, self.account.errand
        now = seen[name].id if name in seen else "(no such topic)"
        kind = TopicRemade if self.recreate else TargetDiverged
        return kind(
            f"flow {errand.flow}: topic {name} on {errand.target} was made anew or deleted: "
            f"its id was {position.target_topic_id}, now {now}",
            f"`mirrorlake repair --target {errand.target}` fills it from bronze, "
            "on_topic_deleted: recreate always does; or remove the target",
        )

    def _begin_anew(self, remade: Held) -> None:
        """Everything that bronze has goes to the new topic; what the old one held is an incident."""
        account = self.account
        for source, position in remade.items():
            del account.book.positions[source]
            account.outbox.incident(
                "target_topic_remade", account.errand.target, source, 0, position.next_offset - 1,
                f"{position.target_partition.topic} was deleted or made anew: filled from bronze",
            )  # fmt: skip
        account.bronze.reindex()  # what was delivered to the old topic was forgotten
        self.begin()

    # --- tails ---

    def _recover_all(self) -> Iterator[Recovered]:
        """Of each target partition that does not end where the ledger says; one that diverged is halted instead."""
        by_target: dict[TopicPartition, dict[SourcePartition, Position]] = defaultdict(dict)
        for source, position in self.account.going().items():
            by_target[position.target_partition][source] = position
        known, ends = self.account.known_ends(), self._stable_ends(by_target)
        doubtful = [target for target in by_target if ends[target] != known[target]]
        starts = self.account.cluster.log_starts(doubtful)
        for target in doubtful:
            try:
                found = self._recover(target, by_target[target], Log(starts[target], ends[target]))
            except TargetDiverged as fault:
                self.account.halt(by_target[target], target, fault)
            else:
                yield found

    def _recover(self, target: TopicPartition, held: Held, log: Log) -> Recovered:
        account = self.account
        compacted = partial(is_compacted, account.cluster, target.topic)
        known = Circumstances(account.may_be_shared(target), compacted, self._waiting, self.mends)
        return recover(account.errand, account.cluster, target, self._in_turn(held), log, account.read_bronze, known)

    def _in_turn(self, held: Held) -> dict[SourcePartition, Position]:
        """Those that have something to send, in the order in which they do; the others are at their end."""
        due = self.account.elders_first(due_segments(self.account.bronze.segments(), held))
        return {source: held[source] for source in (*due, *held)}

    def _waiting(self, source: SourcePartition) -> dict[int, str]:
        return set_aside(entry for entry in self.history() if entry.source == source)

    def _stable_ends(self, held: Mapping[TopicPartition, Held]) -> dict[TopicPartition, int]:
        """After a clean stop the ends are where the ledger says; otherwise bytes of a dead process may still land."""
        account = self.account
        known = {target: end for target, end in account.known_ends().items() if target in held}
        clean, self.stopped_cleanly = self.stopped_cleanly, False
        if clean and account.cluster.log_ends(held) == known:
            return known
        # Others may never stop writing: there our header tells the records apart, and a while is all we can wait.
        busy = {target for target in held if account.errand.provenance and account.may_be_shared(target)}
        ours = held.keys() - busy
        ends = await_stable_ends(account.cluster, ours, STABLE_SECONDS, 60.0, time.monotonic, time.sleep)
        return ends | account.cluster.log_ends(busy)

    def _take(self, found: Recovered) -> None:
        account = self.account
        for source, repeated in found.duplicates.items():
            for first, count in repeated:
                account.outbox.incident(
                    "duplicate", account.errand.target, source, first, first + count - 1,
                    f"landed again in {found.target} before offset {found.target_end}",
                )  # fmt: skip
        entries = [entry for s, runs in found.repaired.items() for entry in account.repairs(s, runs, found.target_end)]
        entries += [entry for outcome in found.outcomes for entry in account.enter(outcome)]
        # In one commit: each says that the log is known to its end, so none may be there without the others.
        account.ledger.add(entries)
        if found.foreign:
            account.shared.add(found.target)
        for position in account.book.positions.values():
            if position.target_partition == found.target:
                position.target_end = max(position.target_end, found.target_end)


def is_another_topic(position: Position, seen: Mapping[str, TopicInfo]) -> bool:
    """Is the target topic gone, or not the one that we filled? Brokers without topic ids cannot tell."""
    topic = seen.get(position.target_partition.topic)
    return bool(position.target_topic_id and (topic is None or (topic.id and topic.id != position.target_topic_id)))
