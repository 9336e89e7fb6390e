"""Event Hubs and Event Streams: what their secrets hold, what they take, and the commands for their operators."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.clusters import (
    librdkafka_common,
    librdkafka_producer,
    limits,
    resolved,
    secrets_file_lines,
    spark_kafka_options,
)
from mirrorlake.config import Cluster, Config, parse
from mirrorlake.errors import ConfigFault, UsageFault
from mirrorlake.services import create_command, grow_command, open_secret, servers_of

CONNECTION = "Endpoint=sb://my-ns.servicebus.windows.net/;SharedAccessKeyName=relay;SharedAccessKey=abc+/="
CREDENTIALS = json.dumps({"api_key": "key-1", "user": "token", "kafka_brokers_sasl": ["b-0.x:9093", "b-1.x:9093"]})


def config(**cluster: Any) -> Config:
    flows = {"f": {"source": "a", "topics": ["t"], "targets": [{"cluster": "b"}]}}
    clusters = {"a": cluster, "b": {"bootstrap_servers": "b:1"}}
    return parse(json.dumps({"clusters": clusters, "flows": flows}), "x")


def hubs(**fields: Any) -> Cluster:
    return config(kind="event_hubs", security={"password": "${env:SECRET}"}, **fields).clusters["a"]


def streams(**fields: Any) -> Cluster:
    return config(kind="event_streams", security={"password": "${env:SECRET}"}, **fields).clusters["a"]


def test_a_connection_string_is_all_that_event_hubs_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", CONNECTION)
    settings = librdkafka_common("a", hubs())
    assert CONNECTION not in settings.values()
    ready = resolved(settings)
    assert ready["bootstrap.servers"] == "my-ns.servicebus.windows.net:9093"
    assert (ready["sasl.username"], ready["sasl.password"]) == ("$ConnectionString", CONNECTION)
    assert not [key for key in ready if key.startswith("mirrorlake")]
    java = spark_kafka_options("a", hubs(), secrets_file=Path("/s"))
    assert java["kafka.bootstrap.servers"] == "my-ns.servicebus.windows.net:9093"
    assert CONNECTION not in str(java)


def test_service_credentials_are_all_that_event_streams_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", CREDENTIALS)
    ready = resolved(librdkafka_common("a", streams()))
    assert ready["bootstrap.servers"] == "b-0.x:9093,b-1.x:9093"
    assert (ready["sasl.username"], ready["sasl.password"]) == ("token", "key-1")
    held = config(kind="event_streams", security={"password": "${env:SECRET}"})
    assert secrets_file_lines(held)["a.password"] == "key-1"
    monkeypatch.setenv("SECRET", "plain-api-key")
    given = resolved(librdkafka_common("a", streams(bootstrap_servers="b:9093")))
    assert (given["bootstrap.servers"], given["sasl.password"]) == ("b:9093", "plain-api-key")


@pytest.mark.parametrize("secret", ["not a connection string", "", "Endpoint=https://x/;SharedAccessKey=s"])
def test_a_secret_that_names_no_server_is_refused_without_being_repeated(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("SECRET", secret)
    with pytest.raises(UsageFault, match="Endpoint=sb://") as refused:
        servers_of("a", hubs())
    assert not secret or secret not in str(refused.value)


@given(st.sampled_from(["event_hubs", "event_streams"]), st.one_of(st.text(), st.text().map(lambda t: "{" + t)))
def test_any_secret_is_opened_or_refused(kind: str, text: str) -> None:
    with contextlib.suppress(UsageFault):
        assert open_secret(kind, text).password or not text


@pytest.mark.parametrize(
    ("kind", "tier", "codec", "partitions", "topics"),
    [
        ("event_hubs", None, "gzip", 1024, None),
        ("event_hubs", "standard", None, 32, 10),
        ("event_hubs", "premium", "gzip", 100, 100),
        ("event_streams", "standard", "zstd", None, None),
        ("event_streams", "lite", "zstd", 1, 1),
    ],
)
def test_tiers_have_limits(kind: str, tier: str | None, codec: str | None, partitions: int, topics: int) -> None:
    cluster = config(kind=kind, tier=tier, security={"password": "${env:S}"}).clusters["a"]
    known = limits(cluster)
    assert (known.max_partitions, known.max_topics) == (partitions, topics)
    refused = "gzip" if codec is None else "lz4" if kind == "event_hubs" else None
    if codec:
        assert librdkafka_producer("a", cluster, {"compression.type": codec})["compression.type"] == codec
    if refused:
        with pytest.raises(UsageFault, match="takes only compression"):
            librdkafka_producer("a", cluster, {"compression.type": refused})


@pytest.mark.parametrize(("kind", "tier"), [("kafka", "standard"), ("event_hubs", "enterprise")])
def test_a_tier_of_another_kind_is_refused(kind: str, tier: str) -> None:
    secret = {"security": {"password": "${env:S}"}} if kind == "event_hubs" else {}
    with pytest.raises(ConfigFault, match=r"clusters\.a\.tier"):
        config(kind=kind, tier=tier, bootstrap_servers="a:1", **secret)


def test_a_plain_cluster_still_needs_its_servers() -> None:
    with pytest.raises(ConfigFault, match=r"clusters\.a\.bootstrap_servers: is missing"):
        config(kind="kafka")
    with pytest.raises(ConfigFault, match=r"bootstrap_servers: must be host:port"):
        config(kind="kafka", bootstrap_servers="from_secret")


def test_commands_name_the_place_and_are_safe_to_paste() -> None:
    named = hubs(bootstrap_servers="my-ns.servicebus.windows.net:9093")
    assert "--namespace-name my-ns --name orders --partition-count 4" in create_command(named, "orders", 4)
    assert "--namespace-name NAMESPACE" in create_command(hubs(), "orders", 4)
    manager = "   # needs the IAM role Manager on the topic"
    assert create_command(streams(), "o", 3) == f"ibmcloud es topic-create --name o --partitions 3{manager}"
    assert grow_command(streams(), "o", 3) == f"ibmcloud es topic-partitions-set --name o --partitions 3{manager}"
    assert "needs Manage, or the role" in create_command(named, "orders", 4)
    plain = config(bootstrap_servers="k:9092").clusters["a"]
    wanted = "kafka-topics --bootstrap-server k:9092 --create --topic o --partitions 3 --replication-factor 2"
    assert create_command(plain, "o", 3, 2) == wanted
    assert "--alter" in grow_command(plain, "o", 3)
    assert "Premium" in grow_command(named, "o", 3)
