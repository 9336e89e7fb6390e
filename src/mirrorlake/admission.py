"""What a changed configuration or damaged state would break is refused, before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mirrorlake.bronze import last_batch, read_positions
from mirrorlake.config import Target
from mirrorlake.control import write_json
from mirrorlake.errors import StateMismatch
from mirrorlake.ledger import Book, Entry
from mirrorlake.records import SourcePartition, TopicPartition
from mirrorlake.strand import Strand
from mirrorlake.streams import StreamId
from mirrorlake.topics import name_on


def refuse_renaming(strand: Strand, target: Target, book: Book) -> None:
    """Where a topic went to it stays: half of its records under another name would be no copy of it."""
    for source, position in book.positions.items():
        name = name_on(strand.world.config, strand.flow, target, source.topic)
        kept = position.target_partition.topic
        if name != kept:
            raise StateMismatch(
                f"flow {strand.flow.name}, target {target.cluster}: topic {source.topic} goes to {kept}, and the "
                f"configuration now calls it {name}",
                "take naming and separator back; or give the cluster another alias as a target, which is then "
                "filled from bronze under the new names",
            )


def refuse_move(
    strand: Strand, stream: StreamId, books: Mapping[str, Book], begin: Callable[[], Mapping[TopicPartition, int]]
) -> None:
    """A topic that goes to another table from now on: what targets have yet to get must be at the source still.

    `begin`: where the flow begins, of partitions where that is not the log's start.
    """
    begun = read_positions(stream.checkpoint(strand.world.checkpoints))
    waiting = {
        (source, target): position.next_offset
        for target, book in books.items()
        for source, position in book.positions.items()
        if source.at not in begun and strand.is_now(source)
    }
    if not waiting:
        return
    held = strand.bronze_ends() if strand.world.tables.exists(strand.spec.table) else {}
    new = {TopicPartition(s.topic, s.partition) for s, _ in waiting if s not in held}
    firsts = {**strand.source.log_starts(new), **begin()}
    for (source, target), offset in waiting.items():
        first = firsts.get(source.at, 0)
        if source not in held and first > offset:
            raise _would_miss(strand, source, target, offset, first)


def _would_miss(strand: Strand, source: SourcePartition, target: str, offset: int, first: int) -> StateMismatch:
    return StateMismatch(
        f"flow {strand.flow.name}: {target} has {source} up to offset {offset}, and the table "
        f"{strand.spec.table} would begin at {first}: what lies between is in the table of before only",
        "go on with the table of before (bronze, topics or patterns of the flow) until `mirrorlake lag` "
        "shows that the target has all of it",
    )


def check_batches(strand: Strand, stream: StreamId, checkpoint: Path) -> None:
    """What the checkpoint calls done must be in the table, and the other way round: or records are passed over.

    The table may be ahead by the batch that a crash cut off between its two commits, which then runs again.
    """
    tables, table = strand.world.tables, strand.spec.table
    done, written = last_batch(checkpoint), tables.txn_version(table, stream.txn_app_id)
    if done is None or tables.folder(table) is None:
        return  # a catalog does not tell
    planned = (checkpoint / "offsets" / str(done + 1)).exists()
    if written not in ((done, done + 1) if planned else (done,)):
        raise StateMismatch(
            f"flow {strand.flow.name}: the checkpoint of {table} has done batch {done}, the table ends "
            f"with {'none of its batches' if written is None else f'batch {written}'}: was one of them put back, "
            "or removed?",
            f"move the folder {checkpoint} away: ingest then goes on where the table ends",
        )


# --- the ledger ---


def _begun_path(strand: Strand, target: str) -> Path:
    return strand.world.root / "begun" / f"{strand.flow.name}@{target}.json"


def note_begun(strand: Strand, target: str) -> None:
    """The ledger knows of this flow and target from now on."""
    path = _begun_path(strand, target)
    if not path.exists():
        write_json(path, {"flow": strand.flow.name, "target": target})


def refuse_lost_ledger(strand: Strand, target: str, known: Sequence[Entry]) -> None:
    """A ledger that has forgotten a target: where others write there too, everything would be sent again."""
    path = _begun_path(strand, target)
    if path.exists() and not known:
        raise StateMismatch(
            f"flow {strand.flow.name}: the ledger knows nothing of target {target}, which was begun: was it removed?",
            f"put {strand.world.ops('ledger')} back; or, to begin anew with that target, remove {path}: then "
            "existing_records says what becomes of the records that it holds",
        )
