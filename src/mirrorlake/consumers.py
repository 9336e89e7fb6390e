"""The consumer groups of a cluster: their states, and what they have committed.

Offsets are asked for in a process of its own: where a coordinator moves while a client that is no consumer fetches
them, librdkafka (2.16) reaches for a group that is not there, and takes the whole process along. A relay must not die
of that; the request is put to a new process. Requests and answers are lines of JSON; the process ends with its input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as _TopicPartition
from confluent_kafka.admin import AdminClient

from mirrorlake.errors import ClusterUnreachable, MirrorlakeError
from mirrorlake.kafka import QUIET, Cluster, translate
from mirrorlake.records import TopicPartition

_MOVING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
AT_ONCE = 100  # requests about groups go one by one; so many may be on their way


@dataclass(frozen=True)
class Commit:
    """Where a group goes on in a partition, and what whoever committed it wrote beside it."""

    offset: int
    metadata: str = ""


Commits = Mapping[TopicPartition, Commit]


@dataclass
class Consumers:
    """The groups of one cluster."""

    cluster: Cluster
    _process: subprocess.Popen[str] | None = None
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def groups(self) -> dict[str, str]:
        return self.cluster.groups()

    def offsets(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, Commit]]:
        """What each group has committed; a group that is not there has nothing."""
        return {group: _commits(rows) for group, rows in self._ask("offsets", sorted(groups))}

    def commit(self, groups: Mapping[str, Commits]) -> dict[str, str]:
        """Commit in the name of groups without members; group -> what went wrong, for those where something did."""
        rows = [[group, _rows(commits)] for group, commits in groups.items()]
        return dict(self._ask("commit", rows))

    def close(self) -> None:
        """The process ends with its input; what is asked for at this moment has no answer."""
        self._closed = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(30)

    def _ask(self, what: str, about: list[Any]) -> list[Any]:
        if not about:
            return []
        with self._lock:
            reply = self._asked_until_answered({"ask": what, "about": about})
        if "code" in reply:
            raise translate(KafkaError(reply["code"], reply["said"]), self.cluster.alias, reply["what"])
        answer: list[Any] = reply["answer"]
        return answer

    def _asked_until_answered(self, request: dict[str, Any]) -> dict[str, Any]:
        """A coordinator that moves has arrived soon."""
        deadline = time.monotonic() + self.cluster.timeout_seconds
        while True:
            try:
                return self._exchange(request)
            except ClusterUnreachable:
                if self._closed or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            settings = {"config": dict(self.cluster.config), "timeout_seconds": self.cluster.timeout_seconds}
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            # Settings hold passwords: they go through the pipe, not the command line.
            self._write(settings)
        self._write(request)
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._process = None
            raise self._gone()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _write(self, message: dict[str, Any]) -> None:
        try:
            assert self._process is not None  # noqa: S101
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # gone, or closed
            self._process = None
            raise self._gone() from None

    def _gone(self) -> MirrorlakeError:
        return ClusterUnreachable(
            f"cluster {self.cluster.alias}: the process that asks for consumer groups ended",
            "a group coordinator may be moving: try again",
        )


def _rows(commits: Commits) -> list[list[Any]]:
    return [[at.topic, at.partition, commit.offset, commit.metadata] for at, commit in commits.items()]


def _commits(rows: Iterable[Any]) -> dict[TopicPartition, Commit]:
    return {TopicPartition(topic, number): Commit(offset, metadata) for topic, number, offset, metadata in rows}


# --- in the process of its own ---


class _Asked:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._timeout_seconds = settings["timeout_seconds"]
        self._errors: list[KafkaError] = []
        self._admin = AdminClient({**settings["config"], **QUIET, "error_cb": self._errors.append})

    def answer(self, ask: str, about: list[Any]) -> dict[str, Any]:
        self._errors.clear()
        try:
            return {"answer": list(getattr(self, ask)(about))}
        except KafkaException as raised:
            error = self._cause(raised.args[0])
            return {"code": error.code(), "said": error.str(), "what": f"{ask} of groups"}

    def _cause(self, error: KafkaError) -> KafkaError:
        """A refused password shows as a time-out here and as itself in the error callback."""
        refused = (KafkaError._AUTHENTICATION, KafkaError._SSL)
        late = error.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
        return next((seen for seen in self._errors if late and seen.code() in refused), error)

    def offsets(self, groups: list[str]) -> Iterator[tuple[str, list[Any]]]:
        for group, future in self._many([(group, None) for group in groups], self._list):
            found = future.result().topic_partitions
            yield group, [[at.topic, at.partition, at.offset, at.metadata or ""] for at in found if at.offset >= 0]

    def commit(self, wanted: list[tuple[str, list[Any]]]) -> Iterator[tuple[str, str]]:
        """What went wrong, by group; a coordinator that moves is waited for."""
        deadline = time.monotonic() + self._timeout_seconds
        due = dict(wanted)
        while due:
            faults = {group: self._fault(future) for group, future in self._many(list(due.items()), self._alter)}
            moving = {group for group, fault in faults.items() if fault and fault.code() in _MOVING}
            if not moving or time.monotonic() > deadline:
                yield from ((group, fault.str()) for group, fault in faults.items() if fault)
                return
            yield from ((group, fault.str()) for group, fault in faults.items() if fault and group not in moving)
            due = {group: rows for group, rows in due.items() if group in moving}
            time.sleep(0.5)

    def _fault(self, future: Any) -> KafkaError | None:
        try:
            return next((at.error for at in future.result().topic_partitions if at.error is not None), None)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            return error

    def _list(self, group: str, _nothing: None) -> Any:
        asked = [ConsumerGroupTopicPartitions(group)]
        return self._admin.list_consumer_group_offsets(asked, request_timeout=self._timeout_seconds)[group]

    def _alter(self, group: str, rows: list[Any]) -> Any:
        places = [_TopicPartition(topic, number, offset, metadata=text) for topic, number, offset, text in rows]
        asked = [ConsumerGroupTopicPartitions(group, places)]
        return self._admin.alter_consumer_group_offsets(asked, request_timeout=self._timeout_seconds)[group]

    def _many(self, items: list[tuple[str, Any]], ask: Callable[[str, Any], Any]) -> Iterator[tuple[str, Any]]:
        for begin in range(0, len(items), AT_ONCE):
            yield from [(group, ask(group, each)) for group, each in items[begin : begin + AT_ONCE]]


def serve(requests: IO[str], replies: IO[str]) -> None:
    """Settings first, then one line for each request, until there are no more."""
    asked = _Asked(json.loads(requests.readline()))
    for line in requests:
        replies.write(json.dumps(asked.answer(**json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
