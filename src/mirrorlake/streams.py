"""A stream's identity: query name, checkpoint and transaction id move together.

Delta ignores a write whose transaction id it has seen with a higher version. A checkpoint that starts anew
counts batches from 0, so a new checkpoint under the old id would lose records in silence. Here one number,
the generation, moves both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import StateMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OnBatch = Callable[["DataFrame", int], None]


@dataclass(frozen=True)
class StreamId:
    """One query of one flow, e.g. ("orders", "ingest", "bronze.src__orders")."""

    flow: str
    leg: str
    subject: str
    generation: int = 0

    @property
    def name(self) -> str:
        return f"{self.flow}.{self.leg}.{self.subject}"

    @property
    def txn_app_id(self) -> str:
        return f"mirrorlake:{self.name}:g{self.generation}"

    def folder(self, checkpoints: Path) -> Path:
        return checkpoints / self.flow / f"{self.leg}.{self.subject}"

    def checkpoint(self, checkpoints: Path) -> Path:
        return self.folder(checkpoints) / f"g{self.generation}"


def current(checkpoints: Path, flow: str, leg: str, subject: str) -> StreamId:
    """The stream's newest generation on storage, 0 when it has none."""
    folder = StreamId(flow, leg, subject).folder(checkpoints)
    generations = [int(path.name[1:]) for path in folder.glob("g*") if path.name[1:].isdigit()]
    return StreamId(flow, leg, subject, max(generations, default=0))


def next_generation(stream: StreamId) -> StreamId:
    return StreamId(stream.flow, stream.leg, stream.subject, stream.generation + 1)


def claim(stream: StreamId, checkpoints: Path, facts: dict[str, str]) -> None:
    """Mark the checkpoint as this stream's."""
    refuse_foreign(stream, checkpoints, facts)
    path = _mark(stream, checkpoints)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replaced = path.with_suffix(".tmp")
    replaced.write_text(json.dumps(facts, indent=1, sort_keys=True))
    replaced.replace(path)


def refuse_foreign(stream: StreamId, checkpoints: Path, facts: dict[str, str]) -> None:
    """A checkpoint that was made for something else is not ours to go on with. Changes nothing."""
    path = _mark(stream, checkpoints)
    if path.exists():
        _compare(stream, path, facts)
    elif (stream.checkpoint(checkpoints) / "metadata").exists():
        raise _foreign(stream, path, "it carries no mark of ours")


def _mark(stream: StreamId, checkpoints: Path) -> Path:
    return stream.folder(checkpoints) / f"g{stream.generation}.json"


def _compare(stream: StreamId, path: Path, facts: dict[str, str]) -> None:
    try:
        kept = json.loads(path.read_text())
    except ValueError:
        raise _foreign(stream, path, f"{path.name} cannot be read") from None
    for key, value in facts.items():
        if kept.get(key) != value:
            raise _foreign(stream, path, f"its {key} is {kept.get(key)}, this flow's is {value}")


def _foreign(stream: StreamId, path: Path, why: str) -> StateMismatch:
    return StateMismatch(
        f"the checkpoint {path.with_suffix('')} belongs to something other than {stream.name}: {why}",
        "use another --root, rename the flow, or move that folder away if it is not needed",
    )


def reporting(act: OnBatch, failed: Callable[[Exception], None]) -> OnBatch:
    """What a query does with a batch, so that its failure reaches us as it was.

    The runner wants the type; Spark gets a short text, since it matches a long one with a deep recursion.
    """

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        try:
            act(frame, batch_id)
        except Exception as error:
            failed(error)
            raise RuntimeError(type(error).__name__) from None

    return on_batch


def ending(query: Any, may_end: bool = False) -> Exception | None:
    """What ended a query, None while it runs. One that nobody asked to end has failed, whatever it says."""
    if query is None or query.isActive:
        return None
    failure: Exception | None = query.exception()
    return failure or (None if may_end else RuntimeError("the query ended by itself, without an error"))
