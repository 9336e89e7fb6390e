"""What can go wrong.

MirrorlakeError
├── UsageFault            exit 2   wrong use or configuration
│   └── ConfigFault                all faults of a configuration file, together
├── Unreachable           exit 3   a cluster, topic or table could not be reached
│   ├── ClusterUnreachable         (transient)
│   ├── AccessRefused              wrong password, missing ACL, untrusted certificate
│   ├── TopicMissing               the topic is not there
│   │   └── TopicNeeded            and may not be made, by us
│   └── StorageUnreachable         the storage root or a table
├── DataAtRisk            exit 4   stopped so as not to lose or repeat data
│   ├── SourceLoss                 the source dropped records before they were read
│   ├── TargetDiverged             the target does not hold what the ledger says
│   │   └── TopicRemade            somebody deleted a topic that the next run fills from bronze
│   ├── ExistingRecords            the target topic holds records that the ledger does not know
│   ├── Undeliverable              a record that the target can never take
│   ├── UnreadableRecord           librdkafka cannot give it to us; Spark's reader can
│   └── StateMismatch              checkpoint, table and flow do not belong together
├── LeaseHeld             exit 5   another runner holds the flow
├── DeliveryDoubt                  (transient) sent, outcome unknown: recover, then go on
└── RecordRefused                  (transient) the target refused a record: find out which, one by one

`Transient` marks what passes by itself: the runner tries again, and says why. All else stops the flow.
"""

from __future__ import annotations

from dataclasses import dataclass


class MirrorlakeError(Exception):
    """Base of all our errors: what is wrong, and what to do next."""

    exit_code = 1

    def __init__(self, what: str, next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what}\n  next: {self.next_step}" if self.next_step else self.what

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        # Errors raised in executors travel to the driver pickled.
        return (type(self), (self.what, self.next_step))


class Transient(MirrorlakeError):
    """Passes by itself: worth trying again."""


class UsageFault(MirrorlakeError):
    exit_code = 2


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a configuration file."""

    where: str  # "conf/x.yml:12"
    key: str  # "flows.orders.targets[0].cluster"
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.what}" if self.key else f"{self.where}: {self.what}"


class ConfigFault(UsageFault):
    def __init__(self, what: str, next_step: str = "", faults: tuple[Fault, ...] = ()) -> None:
        super().__init__("\n".join([what, *(f"  {fault}" for fault in faults)]), next_step)
        self.faults = faults


class Unreachable(MirrorlakeError):
    exit_code = 3


class ClusterUnreachable(Unreachable, Transient):
    pass


class AccessRefused(Unreachable):
    pass


class TopicMissing(Unreachable):
    pass


class TopicNeeded(TopicMissing):
    pass


class StorageUnreachable(Unreachable):
    pass


class DataAtRisk(MirrorlakeError):
    exit_code = 4


class SourceLoss(DataAtRisk):
    pass


class TargetDiverged(DataAtRisk):
    pass


class TopicRemade(TargetDiverged):
    pass


class ExistingRecords(DataAtRisk):
    pass


class Undeliverable(DataAtRisk):
    pass


class UnreadableRecord(DataAtRisk):
    pass


class StateMismatch(DataAtRisk):
    pass


class LeaseHeld(MirrorlakeError):
    exit_code = 5


class RecordRefused(Transient):
    """A broker refused a batch because of a record in it."""

    exit_code = 4


class DeliveryDoubt(Transient):
    """Records were handed to a producer and their fate is unknown."""

    exit_code = 3


def from_text(text: str) -> MirrorlakeError:
    """The error that a task described by name and message."""
    name, _, message = text.partition(": ")
    kind = globals().get(name)
    what, _, next_step = message.partition("\n  next: ")
    if isinstance(kind, type) and issubclass(kind, MirrorlakeError):
        return kind(what, next_step)
    return DeliveryDoubt(text)
