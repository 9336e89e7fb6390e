"""What flows would bring to a cluster, judged against what it takes, and how far away it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mirrorlake.config import Flow
from mirrorlake.services import Limits

OUR_HEADER_BYTES = 60


def distance(milliseconds: float, is_target: bool) -> str:
    """What a round trip means for where to run."""
    if milliseconds < 3:
        return "next door"
    if milliseconds < 40:
        return "the same region or near it"
    if is_target:
        return "far: every batch waits for its acknowledgement, so run nearer to this target if throughput matters"
    return "far: reading stands that well; run nearer to the targets"


def too_many(
    known: Limits, existing: Sequence[str], names: Mapping[str, str], partitions: Mapping[str, int]
) -> Iterator[str]:
    new = [name for name in names.values() if name not in existing]
    if known.max_topics is not None and len(existing) + len(new) > known.max_topics:
        yield f"{len(existing)} topics are there and {len(new)} would come: the tier takes {known.max_topics}"
    for name, count in partitions.items():
        if known.max_partitions is not None and count > known.max_partitions:
            yield f"{name} needs {count} partitions: the tier takes {known.max_partitions}"
    total = sum(partitions.values())
    if known.max_partitions_in_all is not None and total > known.max_partitions_in_all:
        yield f"{total} partitions would come: the tier takes {known.max_partitions_in_all} in all"


def too_large(known: Limits, flow: Flow, largest: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Topics of the source that may hold records which the target refuses."""
    header = OUR_HEADER_BYTES if flow.provenance else 0
    for topic, (here, there) in largest.items():
        takes = min(filter(None, (known.max_record_bytes, there)), default=0)
        if takes and here + header > takes:
            outcome = "goes to ops.dead_letters" if flow.on_undeliverable == "dead_letter" else "stops the flow"
            yield f"{topic} may hold records of {here} bytes, the target takes {takes}: a larger one {outcome}"
