"""The doctor's judgement, without a patient."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorlake import doctor, fitness
from mirrorlake.brokerapi import Spoken
from mirrorlake.clusters import weaknesses
from mirrorlake.config import Config, parse
from mirrorlake.errors import UsageFault
from mirrorlake.kafka import cure_of, refusal_in
from mirrorlake.services import LIMITS

SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": "${env:P}"}


def config(cluster: dict[str, Any], **flow: Any) -> Config:
    flows = {"f": {"source": "a", "topics": ["t"], "targets": [{"cluster": "b"}], **flow}}
    return parse(json.dumps({"clusters": {"a": {"bootstrap_servers": "a:1"}, "b": cluster}, "flows": flows}), "x")


@pytest.mark.parametrize(
    ("milliseconds", "is_target", "word"),
    [(0.4, True, "next door"), (20, True, "region"), (90, True, "this target"), (90, False, "nearer to the targets")],
)
def test_a_round_trip_says_where_to_run(milliseconds: float, is_target: bool, word: str) -> None:
    assert word in fitness.distance(milliseconds, is_target)


def test_tiers_are_compared_with_what_would_come() -> None:
    standard = LIMITS["event_hubs", "standard"]
    names = {f"t{n}": f"a.t{n}" for n in range(4)}
    existing = ["a.t0", *(f"other{n}" for n in range(7))]
    assert list(fitness.too_many(standard, existing, names, {"a.t1": 32})) == [
        "8 topics are there and 3 would come: the tier takes 10"
    ]
    assert list(fitness.too_many(standard, [], {}, {"a.t1": 33})) == ["a.t1 needs 33 partitions: the tier takes 32"]
    lite = LIMITS["event_streams", "standard"]
    assert list(fitness.too_many(lite, [], {}, {"a": 60, "b": 41})) == [
        "101 partitions would come: the tier takes 100 in all"
    ]
    assert list(fitness.too_many(LIMITS["kafka", None], existing, names, {"a.t1": 5000})) == []


def test_records_that_may_not_fit_are_named_with_what_becomes_of_them() -> None:
    hubs, kafka = LIMITS["event_hubs", None], LIMITS["kafka", None]
    flow = config({"bootstrap_servers": "b:1"}).flows["f"]
    (said,) = fitness.too_large(hubs, flow, {"t": (3_000_000, 0), "small": (500_000, 0)})
    assert said == "t may hold records of 3000000 bytes, the target takes 1000000: a larger one stops the flow"
    letters = flow.model_copy(update={"on_undeliverable": "dead_letter"})
    assert "goes to ops.dead_letters" in next(fitness.too_large(kafka, letters, {"t": (2_000, 1_000)}))
    assert list(fitness.too_large(kafka, flow, {"t": (2_000, 0)})) == []
    # Our own header counts.
    assert list(fitness.too_large(replace(kafka, max_record_bytes=1_000), flow, {"t": (1_000, 0)}))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({}, ["plain text"]),
        ({"security": SASL}, []),
        ({"security": {**SASL, "protocol": "SASL_PLAINTEXT"}, "allow_insecure": True}, ["INSECURE"]),
        ({"security": {**SASL, "verify_hostname": False}, "allow_insecure": True}, ["INSECURE"]),
        ({"security": {**SASL, "password": "literal"}, "allow_literal_secrets": True}, ["password is written out"]),
    ],
)
def test_what_is_less_safe_is_said(cluster: dict[str, Any], said: list[str]) -> None:
    found = list(weaknesses(config({"bootstrap_servers": "b:1", **cluster}).clusters["b"]))
    assert len(found) == len(said)
    assert all(word in text for word, text in zip(said, found, strict=True))
    assert "literal" not in "".join(found)


def test_a_cluster_without_a_name_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P", raising=False)
    first, *rest = doctor.examine_cluster(config({"bootstrap_servers": "b:1", "security": SASL}), "b")
    assert (first.what, first.level, rest) == ("configuration", "fault", [])
    assert "no environment variable P" in first.detail


def test_a_broker_too_old_is_refused_and_one_without_topic_ids_is_warned_of() -> None:
    def version(alias: str, highest: dict[int, int]) -> doctor.Seen:
        return doctor.Patient(config({"bootstrap_servers": "b:1"}), alias, spoken=Spoken(highest, 1.0)).version()

    before_headers, before_ids, now = {0: 2, 1: 3, 3: 2}, {0: 8, 1: 11, 3: 9, 22: 3}, {0: 9, 1: 13, 3: 12, 22: 4}
    for alias in ("a", "b"):
        with pytest.raises(UsageFault, match="cannot do without record headers"):
            version(alias, before_headers)
        assert "noticed only where it is shorter" in version(alias, before_ids).warning
        assert version(alias, now).warning == ""
    without_idempotence = {key: value for key, value in now.items() if key != 22}
    assert version("a", without_idempotence).warning == ""
    with pytest.raises(UsageFault, match="cannot do without idempotent producers"):
        version("b", without_idempotence)


def test_the_machine_is_looked_at(tmp_path: Path) -> None:
    # Not further: Java and its jars may not be here.
    found = {check.what: check for check in itertools.islice(doctor.examine_machine(tmp_path), 7)}
    assert found["confluent-kafka"].ok
    assert set(found["python"].to_json()) == {"subject", "what", "ok", "level", "detail", "fix", "facts"}


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("SSL handshake failed: certificate verify failed: x", "security.ca"),
        ("Receive failed: ssl/tls alert bad certificate: SSL alert number 42", "security.certificate"),
        ("SASL authentication error: Authentication failed", "security.username"),
        ("Failed to acquire SASL OAUTHBEARER token: {}", "security.token_endpoint"),
        ("Broker: Topic authorization failed", "kafka-acls"),
        ("Broker: Group authorization failed", "kafka-acls"),
        ("Broker: Cluster authorization failed", "kafka-acls"),
    ],
)
def test_each_refusal_has_its_cure(said: str, cure: str) -> None:
    assert cure in cure_of(said)


def test_what_java_was_refused_is_found_in_a_failed_query() -> None:
    said = "TopicAuthorizationException: Not authorized to access topics: [t]"
    found = refusal_in(f"…\nCaused by: org.apache.kafka.common.errors.{said}\n", "src")
    assert found is not None
    assert found.what == f"cluster src: {said}"
    assert "kafka-acls" in found.next_step
    login = refusal_in("SaslAuthenticationException: Authentication failed", "src")
    assert login is not None
    assert "security.username" in login.next_step
    tls = refusal_in("SslAuthenticationException: SSL handshake failed\nCaused by: … certificate", "src")
    assert tls is not None
    assert "security.ca" in tls.next_step
    assert refusal_in("java.lang.OutOfMemoryError", "src") is None
