"""Where a target begins: a baseline for each source partition, committed before its first record goes out.

Topics that the target lacks, and that only an operator can make, are looked for again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from mirrorlake.account import Account
from mirrorlake.errors import DeliveryDoubt, ExistingRecords
from mirrorlake.failpoints import hit
from mirrorlake.kafka import TopicInfo
from mirrorlake.ledger import Entry
from mirrorlake.missing import Missing, Places
from mirrorlake.produce import record_bytes
from mirrorlake.records import SourcePartition, TopicPartition

LISTED_BATCHES = 16
"""Of records that are listed as dead letters, in a round: the others want to go on."""


@dataclass
class Beginnings:
    """Of one target of one bronze table."""

    account: Account
    target_topics: Callable[[Mapping[str, int]], Places]
    """Of topics with so many partitions, which the source may have no more: made and grown as needed; without those
    that the target does not take."""
    paused: Callable[[str], bool]
    takes: Callable[[str], bool] = lambda _topic: True
    """Source topic -> whether it goes to this target at all."""
    begun: Callable[[], None] = lambda: None
    """Told whenever the ledger knows of the target's first record."""
    latest: Callable[[SourcePartition], int] | None = None
    """Where the source's log ends now."""
    fold_partitions: bool = False
    """Where a target topic has fewer partitions than its source: a record goes to its partition modulo theirs."""
    missing: Missing = field(default_factory=Missing)
    """Topics that only an operator can make."""
    _unbegun: dict[SourcePartition, int] = field(default_factory=dict)
    """Partitions of missing topics, and where bronze begins for them."""
    _listed: dict[SourcePartition, int] | None = None
    """Up to where their records are listed as dead letters; None before the first look."""

    def __call__(self) -> None:
        """A baseline for every source partition that was seen for the first time."""
        firsts = self._unknown()
        if not self.missing.is_due({source.topic for source in firsts}):
            return
        entries = self._baselines(firsts)
        if entries:
            self.account.write(entries)
            self.begun()
            hit("baseline-committed")

    def _unknown(self) -> dict[SourcePartition, int]:
        """Source partitions that the ledger does not know, and where bronze begins for them."""
        firsts: dict[SourcePartition, int] = {}
        book = self.account.book
        for segment in self.account.bronze.segments():
            source = segment.source
            known = source in book.positions or source in book.ended
            if not known and self.takes(source.topic) and not self.paused(source.topic):
                firsts[source] = min(firsts.get(source, segment.first_offset), segment.first_offset)
        return firsts

    def _baselines(self, firsts: Mapping[SourcePartition, int]) -> list[Entry]:
        asked: dict[str, int] = {}
        for source in firsts:
            asked[source.topic] = max(asked.get(source.topic, 0), source.partition + 1)
        found = self.target_topics(asked)
        self.missing.note({topic: need for topic, need in found.needed.items() if topic in asked})
        self._unbegun = {source: first for source, first in firsts.items() if source.topic in found.needed}
        places = self._places(firsts, found.ready)
        ends = self.account.cluster.log_ends(places.values())
        return [
            self._baseline(source, target, found.ready[source.topic].id, firsts[source], ends[target])
            for source, target in places.items()
        ]

    def _places(
        self, firsts: Mapping[SourcePartition, int], ready: Mapping[str, TopicInfo]
    ) -> dict[SourcePartition, TopicPartition]:
        """Of those that can begin: what would follow a partition that is halted waits with it."""
        able = (source for source in sorted(firsts) if source.topic in ready)
        places = ((source, self._place(source, ready[source.topic])) for source in able)
        return {source: place for source, place in places if place not in self.account.halted}

    def _place(self, source: SourcePartition, topic: TopicInfo) -> TopicPartition:
        """For good: the ledger keeps it, whatever becomes of the number of partitions."""
        folded = self.fold_partitions and source.partition >= topic.partitions
        return TopicPartition(topic.name, source.partition % topic.partitions if folded else source.partition)

    def _baseline(self, source: SourcePartition, target: TopicPartition, topic_id: str, first: int, end: int) -> Entry:
        known = self.account.known_ends().get(target)
        if known is None and end:
            first = self._beside_existing(source, target, first, end)
        elif known is not None and known != end and not self.account.may_be_shared(target):
            raise DeliveryDoubt(f"{target} ends at {end}, expected {known}", "recovery reads what is there and goes on")
        return self.account.baseline(source, target, topic_id, first, end)

    def _beside_existing(self, source: SourcePartition, target: TopicPartition, first: int, end: int) -> int:
        errand, policy = self.account.errand, self.account.existing_records
        if policy == "stop":
            raise ExistingRecords(
                f"flow {errand.flow}: {target} on {errand.target} ends at {end}, which the ledger does "
                "not know of; sending would repeat what another replicator may have sent",
                "choose for the target: existing_records: latest (begin at the newest), existing_records: append (send "
                f"all the same), or `mirrorlake adopt --target {errand.target}` (take over MM2's positions)",
            )
        self.account.shared.add(target)
        if policy == "latest" and self.latest is not None:
            return max(first, self.latest(source))
        return first

    def list_missing(self) -> bool:
        """True when all that bronze holds of missing topics is listed as dead letters, where the policy wants that."""
        if self.missing.policy != "dead_letter" or not self.missing.needed:
            return True
        account = self.account
        if self._listed is None:
            self._listed = account.outbox.listed(account.errand.target)
        for source, first in self._unbegun.items():
            need = self.missing.needed[source.topic]
            left = account.read_bronze(source, max(first, self._listed.get(source, 0)), None)
            for batch in islice((batch for batch in left if batch.num_rows), LISTED_BATCHES):
                refused = [(offset, size, need.why) for offset, size in sizes(batch)]
                account.outbox.dead_letters(account.errand, source, need.topic, refused)
                self._listed[source] = refused[-1][0] + 1
        return all(self._listed.get(source, 0) >= account.bronze_end(source) for source in self._unbegun)


def sizes(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """(Offset, bytes as a broker counts them) of each record."""
    columns = (batch[name].to_pylist() for name in ("offset", "key", "value", "headers"))
    return [
        (offset, record_bytes(key, value, [(h["key"], h["value"]) for h in headers or []]))
        for offset, key, value, headers in zip(*columns, strict=True)
    ]
