"""42-44: passwords, certificates, rights."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from stage import Flow, Stage, direct, finish, target_name, wait_until

from mirrorlake.errors import (
    AccessRefused,
)
from mirrorlake.lab import certs
from rows.common import row


def _refused(flow: Flow, change: Callable[[dict[str, Any]], None], seconds: float = 60) -> tuple[int, str, float]:
    content = yaml.safe_load(flow.write().read_text())
    change(content)
    flow.path.write_text(yaml.safe_dump(content))
    begun = time.monotonic()
    runner = flow.command("run", "-c", str(flow.path), "--once", environment={"WRONG_PASSWORD": "wr0ng-s3cret"})
    code, said = finish(runner, seconds)
    assert "Traceback" not in said, said[-1000:]
    assert "next:" in said, said[-1000:]
    return code, said, time.monotonic() - begun


@row("42", "wrong password", "configuration", "exit 3 within 30 s, no secret said; goes on after the fix")
def wrong_password(stage: Stage) -> str:
    flow = stage.flow(stage.topic("password"), ["hubs"])
    code, said, seconds = _refused(
        flow, lambda c: c["clusters"]["hubs"]["security"].update(password="${env:WRONG_PASSWORD}")
    )
    assert code == 3, said
    assert seconds < 30, seconds
    assert "wr0ng-s3cret" not in said
    flow.run_once()
    stage.expect_same(flow)
    return f"refused after {seconds:.1f} s"


@row(
    "43",
    "wrong authority",
    "a CA that signed nothing",
    "exit 3, refused before anything is made; goes on after the fix",
)
def wrong_authority(stage: Stage) -> str:
    flow = stage.flow(stage.topic("authority"), ["hubs"])
    other = flow.folder / "other-ca.pem"
    other.write_bytes(certs.authority().certificate_pem)
    code, said, seconds = _refused(flow, lambda c: c["clusters"]["hubs"]["security"].update(ca=str(other)))
    assert code == 3, said
    flow.run_once()
    stage.expect_same(flow)
    return f"refused after {seconds:.1f} s"


@row(
    "44",
    "ACL for writing removed while it runs",
    "admin, authorizer of the second target",
    "stops that target, names topic; goes on after the fix",
)
def acl_removed(stage: Stage) -> str:
    topic = stage.topic("acl")
    flow = stage.flow(topic, ["hubs"], runner={"refused_seconds": 10})
    with stage.running(flow) as running:
        stage.caught_up(flow, "hubs", running=running)
        with denied(stage, target_name(flow), AclOperation.WRITE):
            stage.more(topic, 300)
            said = running.ended_with(AccessRefused)
    assert target_name(flow) in said, f"the topic is not named: {said}"
    flow.run_once()
    stage.expect_same(flow)
    return said.splitlines()[0][:120]


@row(
    "44b",
    "ACL for reading removed while it runs",
    "admin, authorizer of the source",
    "waits, then stops (3), names topic; goes on after the fix",
)
def acl_for_reading_removed(stage: Stage) -> str:
    """`hubs` as the source: it is the cluster that has an authorizer."""
    topic, back = f"reading-{os.getpid()}", stage.records.numbered
    stage.records.create("hubs", topic, 2)
    stage.send(topic, back(200, 2), to="hubs")
    flow = stage.flow(topic, ["shaky"], source="hubs", runner={"refused_seconds": 10})
    with stage.running(flow) as running:
        wait_until(lambda: stage.ends("shaky", f"hubs.{topic}") == 200, "the first records")
        with denied(stage, topic, AclOperation.READ):
            stage.send(topic, back(300, 2, 200), to="hubs")
            said = running.ended_with(AccessRefused)
    assert topic in said, f"the topic is not named: {said}"
    flow.run_once()
    stage.expect_same(flow)
    return said.splitlines()[0][:120]


@contextlib.contextmanager
def denied(stage: Stage, topic: str, operation: AclOperation) -> Iterator[None]:
    """Everything else stays allowed on the topic, as the cluster allows what no ACL speaks of."""
    admin = AdminClient({**direct(stage.cluster("hubs")), "log_level": 0})
    place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*")
    allow = AclBinding(*place, AclOperation.ALL, AclPermissionType.ALLOW)
    deny = AclBinding(*place, operation, AclPermissionType.DENY)
    for future in admin.create_acls([allow, deny]).values():
        future.result(20)
    time.sleep(1)  # until the authorizer has replayed the metadata log; nothing says when
    yield
    everything = AclBindingFilter(*place, AclOperation.ANY, AclPermissionType.ANY)
    next(iter(admin.delete_acls([everything]).values())).result(20)
    time.sleep(1)
