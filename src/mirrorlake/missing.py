"""Topics that a target lacks and only an operator can make. Their records stay in bronze, and the others go on.

The target's policy says what else happens: `stop` after a while, `wait`, or `dead_letter`, which lists each record.
Once the topic is there, all of it is sent from bronze, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mirrorlake.errors import TopicNeeded
from mirrorlake.kafka import TopicInfo

MISSING_SECONDS = 30.0
"""How long a topic may be missing: as long as an election takes."""
LOOK_SECONDS = 2.0
"""How often a missing topic is looked for."""

Policy = Literal["stop", "wait", "dead_letter"]


@dataclass(frozen=True)
class Need:
    """A topic of a target that is missing or too small, and what its operator has to do."""

    topic: str
    why: str
    command: str = ""

    def __str__(self) -> str:
        return f"topic {self.topic} {self.why}"


@dataclass(frozen=True)
class Places:
    """Where the source's topics go on a target."""

    ready: Mapping[str, TopicInfo]
    """Source topic -> its target topic."""
    needed: Mapping[str, Need] = field(default_factory=dict)
    """Source topic -> what it needs before it can go anywhere."""


def topics_needed(target: str, needs: Iterable[Need]) -> TopicNeeded:
    needs = list(needs)
    lines = "\n".join(need.command for need in needs)
    said = "; ".join(str(need) for need in needs)
    return TopicNeeded(
        f"cluster {target}: {said}", f"have it done; `mirrorlake plan` lists all that is missing\n{lines}"
    )


@dataclass
class Missing:
    """What one target lacks, and since when."""

    target: str = ""
    policy: Policy = "stop"
    clock: Callable[[], float] = time.monotonic
    needed: Mapping[str, Need] = field(default_factory=dict)
    """By source topic."""
    _since: dict[str, float] = field(default_factory=dict)
    _looked: float = 0.0

    @property
    def patience_seconds(self) -> float:
        return MISSING_SECONDS if self.policy == "stop" else float("inf")

    def is_due(self, topics: Collection[str]) -> bool:
        """Is it time to look for these? New ones at once, those that are missing now and then."""
        waited = self.clock() - self._looked >= LOOK_SECONDS
        return set(topics) != self.needed.keys() or (bool(topics) and waited)

    def note(self, needed: Mapping[str, Need]) -> None:
        """We have just looked."""
        self._looked = self.clock()
        self._since = {topic: self._since.get(topic, self._looked) for topic in needed}
        self.needed = needed

    def require(self, patience_seconds: float) -> None:
        """Stop for what has been missing for too long."""
        patience_seconds = min(self.patience_seconds, patience_seconds)
        lasting = [topic for topic, since in self._since.items() if self.clock() - since > patience_seconds]
        if lasting and self.policy != "dead_letter":
            raise topics_needed(self.target, [self.needed[topic] for topic in lasting])

    def said(self) -> str:
        """For people; empty where nothing is missing."""
        return topics_needed(self.target, self.needed.values()).what if self.needed else ""
