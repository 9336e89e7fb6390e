"""One cluster in two dialects; secrets stay references until the last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.clusters import (
    CONSUMER_FIXED,
    PRODUCER_FIXED,
    jaas_escape,
    librdkafka_admin,
    librdkafka_common,
    librdkafka_consumer,
    librdkafka_producer,
    limits,
    properties_escape,
    resolved,
    secrets_file_lines,
    spark_kafka_options,
)
from mirrorlake.config import OURS, Cluster, Config, Flow, Target
from mirrorlake.errors import UsageFault
from mirrorlake.properties import parse

CANARY = 'ca"na\\ry'
FILE = Path("/run/mirrorlake/secrets.properties")
PASSWORD = "${env:CANARY}"


def cluster(**fields: Any) -> Cluster:
    return Cluster.model_validate({"bootstrap_servers": "h:9093", **fields})


def sasl(mechanism: str = "SCRAM-SHA-512", **fields: Any) -> Cluster:
    user = {"mechanism": mechanism, "username": "me", "password": PASSWORD}
    return cluster(security={"protocol": "SASL_SSL", **user, **fields})


def hubs(**fields: Any) -> Cluster:
    return cluster(kind="event_hubs", security={"password": PASSWORD}, **fields)


def mutual_tls(folder: Path) -> Cluster:
    for name in ("key", "certificate"):
        (folder / name).write_text(f"-----BEGIN {name}-----\nabc\n-----END {name}-----\n")
    files = {"certificate": f"{folder}/certificate", "key": f"{folder}/key", "key_password": PASSWORD}
    return cluster(security={"protocol": "SSL", "ca": "/ca.pem", **files})


def config(**clusters: Cluster) -> Config:
    flow = Flow(name="f", source="a", topics=["t"], targets=[Target(cluster="b")])
    return Config(clusters={"b": cluster(), **clusters}, flows={"f": flow})


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARY)


# --- librdkafka


def test_a_plain_cluster_needs_servers_and_protocol_only() -> None:
    assert librdkafka_common("a", cluster()) == {
        "bootstrap.servers": "h:9093",
        "client.id": "mirrorlake-a",
        "security.protocol": "PLAINTEXT",
    }


def test_settings_hold_references_until_resolved() -> None:
    settings = librdkafka_producer("a", sasl())
    assert settings["sasl.password"] == PASSWORD
    assert resolved(settings)["sasl.password"] == CANARY
    assert settings["ssl.endpoint.identification.algorithm"] == "https"


@pytest.mark.parametrize(
    "given_cluster",
    [
        pytest.param(cluster(), id="plain"),
        pytest.param(sasl(), id="SCRAM"),
        pytest.param(hubs(), id="Event Hubs"),
        pytest.param(cluster(kind="event_streams", security={"password": PASSWORD}), id="Event Streams"),
        pytest.param(sasl("OAUTHBEARER", token_endpoint="https://idp/token", scope="k"), id="OAUTHBEARER"),
    ],
)
def test_librdkafka_takes_every_setting(given_cluster: Cluster) -> None:
    Producer(resolved(librdkafka_producer("a", given_cluster)))
    Consumer(resolved(librdkafka_consumer("a", given_cluster))).close()
    AdminClient(resolved(librdkafka_admin("a", given_cluster)))


def test_producers_are_idempotent_gapless_and_report_errors_only() -> None:
    settings = librdkafka_producer("a", cluster(producer={"linger.ms": "5"}))
    assert PRODUCER_FIXED.items() <= settings.items()
    assert settings["linger.ms"] == "5"


def test_the_flow_comes_before_the_cluster_and_the_cluster_before_us() -> None:
    given_cluster = cluster(client={"client.id": "x", "linger.ms": "1"}, producer={"linger.ms": "2"})
    assert librdkafka_producer("a", given_cluster)["linger.ms"] == "2"
    assert librdkafka_producer("a", given_cluster, {"queue.buffering.max.ms": "3"})["linger.ms"] == "3"
    assert librdkafka_admin("a", given_cluster)["client.id"] == "x"


def test_what_we_fix_cannot_be_set_and_says_why() -> None:
    assert {*PRODUCER_FIXED, *CONSUMER_FIXED, "isolation.level", "group.id"} <= OURS.keys()
    with pytest.raises(UsageFault, match=r"enable\.idempotence: fixed by Mirrorlake: .* twice"):
        librdkafka_producer("a", cluster(), {"enable.idempotence": "false"})


def test_consumers_commit_nothing_and_see_the_end_of_a_partition() -> None:
    settings = librdkafka_consumer("a", cluster(), "read_uncommitted", group="audit")
    assert CONSUMER_FIXED.items() <= settings.items()
    assert (settings["isolation.level"], settings["group.id"]) == ("read_uncommitted", "audit")


def test_event_hubs_is_uncompressed_and_never_idle_for_long() -> None:
    settings = librdkafka_producer("h", hubs())
    assert settings["compression.type"] == "none"
    assert int(settings["connections.max.idle.ms"]) < 240_000
    assert int(settings["message.max.bytes"]) < 1_046_528
    assert settings["sasl.username"] == "$ConnectionString"


def test_a_compression_that_event_hubs_cannot_take_is_refused() -> None:
    with pytest.raises(UsageFault, match="none or gzip"):
        librdkafka_producer("h", hubs(producer={"compression.codec": "lz4"}))


def test_limits_know_the_kind_and_yield_to_the_operator() -> None:
    assert limits(cluster()).max_record_bytes is None
    assert limits(hubs()).can_create_topics is False
    assert limits(hubs(producer={"message.max.bytes": "262144"})).max_record_bytes == 262_144


# --- Spark


def test_a_plain_cluster_gives_spark_no_provider() -> None:
    assert spark_kafka_options("a", cluster()) == {
        "kafka.bootstrap.servers": "h:9093",
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_spark_sees_a_reference_that_kafka_resolves() -> None:
    options = spark_kafka_options("a", sasl(), secrets_file=FILE)
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="${file:/run/mirrorlake/secrets.properties:a.password}";'
    )
    assert options["kafka.config.providers"] == "file"
    assert options["kafka.config.providers.file.param.allowed.paths"] == str(FILE)
    assert CANARY not in str(options)


@pytest.mark.parametrize(
    ("mechanism", "fields", "module"),
    [
        pytest.param("PLAIN", {}, "plain.PlainLoginModule", id="PLAIN"),
        pytest.param("SCRAM-SHA-256", {}, "scram.ScramLoginModule", id="SCRAM"),
        pytest.param("OAUTHBEARER", {"token_endpoint": "https://t"}, "OAuthBearerLoginModule", id="OAUTHBEARER"),
    ],
)
def test_databricks_moved_every_class(mechanism: str, fields: dict[str, str], module: str) -> None:
    options = spark_kafka_options("a", sasl(mechanism, **fields), shaded=True, secrets_file=FILE)
    assert options["kafka.sasl.jaas.config"].startswith("kafkashaded.org.apache.kafka")
    assert module in options["kafka.sasl.jaas.config"]
    classes = [value for key, value in options.items() if key.endswith(".class")]
    assert all(name.startswith("kafkashaded.") for name in classes)


def test_a_user_name_cannot_begin_a_second_login_module() -> None:
    options = spark_kafka_options("a", sasl(username='x"; evil.Module required a="'), secrets_file=FILE)
    assert 'username="x\\"; evil.Module required a=\\""' in options["kafka.sasl.jaas.config"]


def test_a_user_name_by_reference_goes_through_the_file_too() -> None:
    given_cluster = sasl(username="${env:CANARY}")
    options = spark_kafka_options("a", given_cluster, secrets_file=FILE)
    assert f'username="${{file:{FILE}:a.username}}"' in options["kafka.sasl.jaas.config"]
    assert "a.username" in secrets_file_lines(config(a=given_cluster))


def test_mutual_tls_keeps_the_key_out_of_the_options(tmp_path: Path) -> None:
    given_cluster = mutual_tls(tmp_path)
    options = spark_kafka_options("a", given_cluster, secrets_file=FILE)
    assert options["kafka.ssl.keystore.type"] == options["kafka.ssl.truststore.type"] == "PEM"
    assert options["kafka.ssl.keystore.key"] == f"${{file:{FILE}:a.key}}"
    lines = secrets_file_lines(config(a=given_cluster))
    assert lines["a.key"] == "-----BEGIN key-----\\nabc\\n-----END key-----"
    assert parse("p=" + lines["a.key_password"]).values()["p"] == CANARY


def test_secrets_without_a_file_are_refused() -> None:
    with pytest.raises(UsageFault, match="no secrets file"):
        spark_kafka_options("a", sasl())


def test_a_path_that_kafka_would_cut_is_refused() -> None:
    with pytest.raises(UsageFault, match="references cannot carry"):
        spark_kafka_options("a", sasl(), secrets_file=Path("/run/a:b"))


def test_the_file_holds_the_password_escaped_for_jaas_then_for_properties() -> None:
    lines = secrets_file_lines(config(a=sasl()))
    assert lines == {"a.password": 'ca\\\\"na\\\\\\\\ry'}
    assert parse("x=" + lines["a.password"]).values()["x"] == jaas_escape(CANARY)


def test_control_characters_cannot_enter_jaas() -> None:
    with pytest.raises(UsageFault, match="control character"):
        jaas_escape("a\nb")


@given(st.text())
def test_any_value_survives_the_properties_format(value: str) -> None:
    line = f"k={properties_escape(value)}"
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert parse(line).values()["k"] == value


# --- executors on other machines


def test_by_the_environment_secrets_stay_where_executors_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "plain")
    options = spark_kafka_options("a", sasl(), shaded=True, by_environment=True)
    assert 'password="${env:CANARY}"' in options["kafka.sasl.jaas.config"]
    assert options["kafka.config.providers"] == "env"
    assert options["kafka.config.providers.env.class"].startswith("kafkashaded.")
    assert not any(key.startswith("kafka.config") for key in spark_kafka_options("a", cluster(), by_environment=True))


def test_what_the_environment_cannot_carry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageFault, match="a quote or a backslash"):
        spark_kafka_options("a", sasl(), by_environment=True)
    with pytest.raises(UsageFault, match="environment only"):
        spark_kafka_options("a", sasl(password="${file:/x}"), by_environment=True)
    with pytest.raises(UsageFault, match="one file"):
        spark_kafka_options("a", mutual_tls(tmp_path), by_environment=True)
    monkeypatch.setenv("CANARY", "plain")
    files = {"certificate": "/both.pem", "key": "/both.pem", "key_password": PASSWORD}
    both = spark_kafka_options("a", cluster(security={"protocol": "SSL", **files}), by_environment=True)
    assert (both["kafka.ssl.keystore.location"], both["kafka.ssl.keystore.type"]) == ("/both.pem", "PEM")
