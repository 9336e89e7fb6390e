"""An mm2.properties in our words: every key has its fate, and what runs is what MM2 would run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake import mm2
from mirrorlake.config import MM2_CONFIG_EXCLUDES, Config, ConfigSync, Heartbeats
from mirrorlake.errors import ConfigFault
from mirrorlake.files import build
from mirrorlake.mm2 import Draft, parse_jaas, plain_name
from mirrorlake.mm2keys import COMMON, COMMON_TUNING, KEYS, PRODUCER_TUNING, Fate, Tuned, find
from mirrorlake.topics import takes, target_takes

BASE = """\
clusters = A, B, C
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
C.bootstrap.servers = c:9092
A->B.enabled = true
"""
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = "A.security.protocol=SASL_SSL\nA.sasl.mechanism=PLAIN\n"


def draft(more: str = "", base: str = BASE) -> Draft:
    return mm2.read(base + more, "mm2.properties")


def config(more: str = "", base: str = BASE) -> Config:
    return build(draft(more, base), "mm2.properties")


def faults(more: str, base: str = BASE) -> list[str]:
    with pytest.raises(ConfigFault) as refused:
        config(more, base)
    return [str(fault) for fault in refused.value.faults]


def notes(more: str, key: str) -> list[str]:
    return [str(note) for note in draft(more).notes if note.key == key]


def fates(more: str, key: str) -> set[Fate]:
    return {note.fate for note in draft(more).notes if note.key == key}


# --- no key is forgotten ---

# Every key of MM2 4.0 and before, as the reference of this project lists them; copied by hand, on purpose.
REFERENCE = [
    "name",
    "connector.class",
    "tasks.max",
    "key.converter",
    "value.converter",
    "header.converter",
    "transforms",
    "predicates",
    "errors.tolerance",
    "errors.retry.timeout",
    "errors.log.enable",
    "config.action.reload",
    "enabled",
    "source.cluster.alias",
    "target.cluster.alias",
    "admin.timeout.ms",
    "replication.policy.class",
    "replication.policy.separator",
    "replication.policy.internal.topic.separator.enabled",
    "forwarding.admin.class",
    "metric.reporters",
    "security.protocol",
    "topics",
    "topics.exclude",
    "topic.filter.class",
    "config.properties.exclude",
    "use.defaults.from",
    "config.property.filter.class",
    "consumer.poll.timeout.ms",
    "replication.factor",
    "refresh.topics.enabled",
    "refresh.topics.interval.seconds",
    "sync.topic.configs.enabled",
    "sync.topic.configs.interval.seconds",
    "sync.topic.acls.enabled",
    "sync.topic.acls.interval.seconds",
    "offset.lag.max",
    "emit.offset-syncs.enabled",
    "offset-syncs.topic.replication.factor",
    "offset-syncs.topic.location",
    "heartbeats.replication.enabled",
    "task.assigned.partitions",
    "task.index",
    "use.incremental.alter.configs",
    "add.source.alias.to.metrics",
    "topics.blacklist",
    "groups.blacklist",
    "config.properties.blacklist",
    "groups",
    "groups.exclude",
    "group.filter.class",
    "refresh.groups.enabled",
    "refresh.groups.interval.seconds",
    "emit.checkpoints.enabled",
    "emit.checkpoints.interval.seconds",
    "sync.group.offsets.enabled",
    "sync.group.offsets.interval.seconds",
    "checkpoints.topic.replication.factor",
    "emit.heartbeats.enabled",
    "emit.heartbeats.interval.seconds",
    "heartbeats.topic.replication.factor",
    "clusters",
    "dedicated.mode.enable.internal.rest",
    "config.providers",
    "config.providers.file.class",
    "client.id",
    "group.id",
    "config.storage.topic",
    "offset.storage.topic",
    "status.storage.topic",
    "config.storage.replication.factor",
    "offset.flush.interval.ms",
    "offset.flush.timeout.ms",
    "scheduled.rebalance.max.delay.ms",
    "exactly.once.source.support",
    "bootstrap.servers",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.service.name",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.login.refresh.buffer.seconds",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.jwks.endpoint.url",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
]
PREFIXED = [
    "A.producer.acks",
    "B.producer.linger.ms",
    "B.producer.batch.size",
    "B.producer.compression.type",
    "B.producer.max.request.size",
    "B.producer.enable.idempotence",
    "B.producer.max.in.flight.requests.per.connection",
    "B.producer.delivery.timeout.ms",
    "B.producer.max.block.ms",
    "A.consumer.max.poll.records",
    "A.consumer.max.partition.fetch.bytes",
    "A.consumer.enable.auto.commit",
    "A.consumer.auto.offset.reset",
    "A.consumer.isolation.level",
    "A.admin.request.timeout.ms",
    "A->B.source.consumer.fetch.max.bytes",
    "A->B.target.producer.linger.ms",
    "A->B.source.admin.retries",
    "A->B.producer.override.linger.ms",
    "A->B.producer.override.buffer.memory",
    "A->B.source.cluster.security.protocol",
    "A->B.target.cluster.security.protocol",
    "A->B.consumer.max.poll.records",
    "A->B.producer.max.request.size",
    "A->B.tasks.max",
    "B.offset.storage.replication.factor",
    "A.metadata.max.age.ms",
    "B.request.timeout.ms",
]


@pytest.mark.parametrize("key", REFERENCE)
def test_every_key_of_mm2_is_in_a_table(key: str) -> None:
    assert find(KEYS, key) or find(COMMON, key)


@pytest.mark.parametrize("key", [*REFERENCE, *PREFIXED])
def test_every_key_of_mm2_has_a_note_and_is_known(key: str) -> None:
    text = BASE.replace("clusters = A, B, C\n", "") if key == "clusters" else BASE
    made = mm2.read(f"{text}{key} = {'A,B,C' if key == 'clusters' else '1'}\n", "x")
    about = [note for note in made.notes if note.key == key]
    assert about or any(fault.key == key for fault in made.faults)
    assert Fate.UNKNOWN not in {note.fate for note in about}


@pytest.mark.parametrize("key", ["internal.topic.replication.factor", "A.nonsense", "A->B.topic", "A->Z.enabled"])
def test_what_mm2_does_not_know_runs_with_a_warning(key: str) -> None:
    made = draft(f"{key} = 3\n")
    assert build(made, "x")
    assert [(note.fate, note.warns) for note in made.notes if note.key == key] == [(Fate.UNKNOWN, True)]


@pytest.mark.parametrize("key", ["producer.linger.ms", "producer.override.acks", "consumer.max.poll.records"])
def test_what_mm2_drops_at_the_top_level_is_told(key: str) -> None:
    assert fates(f"{key}=5\n", key) == {Fate.UNKNOWN}
    assert "below a cluster" in notes(f"{key}=5\n", key)[0]


def test_a_key_that_stands_twice_counts_as_in_java_and_is_told() -> None:
    made = draft("replication.factor=1\nreplication.factor=3\n")
    assert build(made, "x").flows["A"].targets[0].replication_factor == 3
    assert any("lines 6, 7, of which the last counts" in str(note) for note in made.notes if note.warns)


# --- precedence ---


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        pytest.param("", -1, id="the broker decides"),
        pytest.param("replication.factor=3\n", 3, id="for all pairs"),
        pytest.param("A->B.replication.factor=1\n", 1, id="for the pair"),
        pytest.param("A->B.replication.factor=1\nreplication.factor=3\n", 1, id="the pair comes first"),
    ],
)
def test_a_pair_comes_before_all_pairs(more: str, factor: int) -> None:
    assert config(more).flows["A"].targets[0].replication_factor == factor


def test_a_cluster_comes_before_all_clusters() -> None:
    made = config("security.protocol=SSL\nB.security.protocol=PLAINTEXT\n")
    assert [c.security.protocol for c in made.clusters.values()] == ["SSL", "PLAINTEXT", "SSL"]


def test_one_client_of_a_cluster_may_name_the_security() -> None:
    assert config("A.consumer.security.protocol=SSL\n").clusters["A"].security.protocol == "SSL"
    assert config("A->B.source.cluster.security.protocol=SSL\n").clusters["A"].security.protocol == "SSL"
    assert config("A->B.target.cluster.security.protocol=SSL\n").clusters["B"].security.protocol == "SSL"


def test_two_ways_to_connect_to_one_cluster_are_told() -> None:
    more = "A.security.protocol=SSL\nA.admin.security.protocol=PLAINTEXT\n"
    assert config(more).clusters["A"].security.protocol == "SSL"
    assert fates(more, "A.admin.security.protocol") == {Fate.UNSUPPORTED}


def test_the_consumer_says_where_to_begin_and_what_to_see() -> None:
    flow = config("A.consumer.auto.offset.reset=latest\nA->B.consumer.isolation.level=read_uncommitted\n").flows["A"]
    assert (flow.start, flow.isolation) == ("latest", "read_uncommitted")
    more = "A->B.consumer.auto.offset.reset=latest\nA->B.source.consumer.auto.offset.reset=earliest\n"
    assert config(more).flows["A"].start == "earliest"


def test_producer_overrides_come_before_the_clusters_producer() -> None:
    more = "B.producer.linger.ms=5\nA->B.producer.override.linger.ms=50\nB.producer.compression.type=zstd\n"
    assert config(more).clusters["B"].producer == {"linger.ms": "50", "compression.type": "zstd"}


def test_producer_numbers_are_translated() -> None:
    more = (
        "B.producer.max.request.size=2000000\nB.producer.buffer.memory=67108864\nB.producer.delivery.timeout.ms=60000\n"
    )
    made = config(more)
    assert made.clusters["B"].producer == {"message.max.bytes": "2000000", "queue.buffering.max.kbytes": "65536"}
    assert made.flows["A"].fanout.delivery_timeout_seconds == 60


def test_a_number_out_of_bounds_is_not_taken() -> None:
    key = "B.producer.linger.ms"
    assert config(f"{key}=99999999\n").clusters["B"].producer == {}
    assert fates(f"{key}=99999999\n", key) == {Fate.UNSUPPORTED}


@pytest.mark.parametrize("tuned", [*COMMON_TUNING.values(), *PRODUCER_TUNING.values()], ids=lambda tuned: tuned.name)
def test_librdkafka_takes_every_number_within_the_bounds(tuned: Tuned) -> None:
    for number in (tuned.low, tuned.high):
        confluent_kafka.Producer({tuned.name: str(number), "log_level": 0})
    for number in (tuned.low - 1, tuned.high + 1):
        with pytest.raises(confluent_kafka.KafkaException):
            confluent_kafka.Producer({tuned.name: str(number), "log_level": 0})


def test_an_unknown_compression_is_refused() -> None:
    assert "must be one of none, gzip" in faults("B.producer.compression.type=fast\n")[0]


def test_the_shortest_refresh_counts() -> None:
    more = "refresh.topics.interval.seconds=60\nA->B.refresh.topics.interval.seconds=20\nA->C.enabled=true\n"
    assert config(more).runner.refresh_topics_seconds == 20


# --- topics ---


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("orders", "orders"), ("orders-eu_1", "orders-eu_1"), ("orders.v1", "orders.v1"), (r"orders\.v1", "orders.v1"),
        (".*", None), ("orders.*", None), ("orders.", None), (".orders", None), ("a..b", None), ("a|b", None),
        ("orders[0-9]", None), ("(a)", None), (r"a\d", None),
    ],
)  # fmt: skip
def test_plain_names_are_told_from_expressions(entry: str, name: str | None) -> None:
    assert plain_name(entry) == name


def test_names_and_expressions_go_where_they_belong() -> None:
    flow = config("A->B.topics = orders, pay.*, items\\\\.v1\n").flows["A"]
    assert flow.topics == ["orders", "items.v1"]
    assert flow.patterns == ["pay.*"]
    assert not takes(flow, "pay.internal")


def test_exclusions_win_over_names() -> None:
    more = "A->B.topics = orders, secret\ntopics.exclude = sec.*\n"
    assert config(more).flows["A"].topics == ["orders"]
    assert any(note.warns for note in draft(more).notes if note.key == "A->B.topics")


def test_internal_topics_stay_out_whatever_is_excluded() -> None:
    flow = config("A->B.topics = .*\ntopics.exclude = x\n").flows["A"]
    assert not any(takes(flow, topic) for topic in ("x", "__consumer_offsets", "mm2.internal", ".hidden"))
    assert takes(flow, "a.replica")


def test_without_topics_all_are_taken() -> None:
    assert config().flows["A"].patterns == [".*"]


def test_an_empty_list_of_topics_relays_nothing() -> None:
    assert "no pair is enabled" in faults("A->B.topics =\n")[0]


def test_an_expression_cut_at_a_comma_is_refused() -> None:
    assert "cut at a comma" in faults("A->B.topics = a{1,3}\n")[0]


# --- flows ---

THREE = "A->C.enabled = true\n"


def test_pairs_of_one_source_become_one_flow_that_takes_the_union() -> None:
    made = config(THREE + "A->B.topics=orders,items\nA->C.topics=orders,pay.*\nA->C.topics.exclude=pay.x\n")
    assert list(made.flows) == ["A"]
    flow = made.flows["A"]
    assert (flow.topics, flow.patterns) == (["orders", "items"], ["pay.*"])
    b, c = flow.targets
    some = [topic for topic in ("orders", "items", "pay.a", "pay.x", "__x") if takes(flow, topic)]
    taken = {each.cluster: {topic for topic in some if target_takes(each, topic)} for each in (b, c)}
    assert taken == {"B": {"orders", "items"}, "C": {"orders", "pay.a"}}


def test_pairs_that_agree_narrow_nothing() -> None:
    flow = config(THREE + "topics=orders\n").flows["A"]
    assert [(target.cluster, target.topics) for target in flow.targets] == [("B", []), ("C", [])]


def test_pairs_that_read_differently_become_flows_with_tables_of_their_own() -> None:
    made = config(THREE + "topics=orders\nA->C.consumer.auto.offset.reset=latest\n")
    assert list(made.flows) == ["A", "A-to-C"]
    assert made.flows["A-to-C"].bronze == "bronze.{flow}__{topic}"
    assert made.flows["A-to-C"].start == "latest"


def test_naming_may_differ_between_targets_of_one_flow() -> None:
    policy = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
    targets = config(THREE + f"A->C.replication.policy.class={policy}\n").flows["A"].targets
    assert [target.naming for target in targets] == ["default", "identity"]


def test_both_directions_are_two_flows() -> None:
    assert list(config("B->A.enabled=true\n").flows) == ["A", "B"]


def test_a_disabled_pair_is_left_out_and_told() -> None:
    more = "A->C.enabled=false\nA->C.topics=x\n"
    assert [target.cluster for target in config(more).flows["A"].targets] == ["B"]
    assert fates(more, "A->C.topics") == {Fate.NOT_NEEDED}


def test_a_separator_is_taken() -> None:
    target = config("replication.policy.separator=_\n").flows["A"].targets[0]
    assert target.separator == "_"


def test_dropped_records_become_dead_letters() -> None:
    assert config("errors.tolerance=all\n").flows["A"].on_undeliverable == "dead_letter"


POOL = ["orders", "items", "pay.*", "[a-z]+", ".*", "x-[0-9]", "orders|items", "it.*"]
TOPICS = ["orders", "items", "pay", "pay-1", "x-1", "__x", "a.internal", "b-internal", "a.replica", "Z"]
SOME = st.lists(st.sampled_from(POOL), max_size=3)


def mm2_takes(topic: str, topics: list[str], exclude: list[str] | None) -> bool:
    """MM2's own rule, as simple as it is there."""
    internal = topic.startswith(("__", ".")) or topic.endswith((".internal", "-internal"))
    excludes = [r".*[\-\.]internal", r".*\.replica", "__.*"] if exclude is None else exclude
    included = any(re.fullmatch(each, topic) for each in topics)
    return included and not internal and not any(re.fullmatch(each, topic) for each in excludes)


@given(SOME.filter(bool), SOME.filter(bool), st.none() | SOME, st.none() | SOME)
def test_every_target_gets_the_topics_that_mm2_would_give_it(
    b: list[str], c: list[str], not_b: list[str] | None, not_c: list[str] | None
) -> None:
    more = f"A->C.enabled=true\nA->B.topics={','.join(b)}\nA->C.topics={','.join(c)}\n"
    more += f"A->B.topics.exclude={','.join(not_b)}\n" if not_b is not None else ""
    more += f"A->C.topics.exclude={','.join(not_c)}\n" if not_c is not None else ""
    made = draft(more)
    flows = build(made, "x").flows.values() if made.raw.get("flows") else []
    wanted = {
        (alias, t) for alias, yes, no in (("B", b, not_b), ("C", c, not_c)) for t in TOPICS if mm2_takes(t, yes, no)
    }
    taken = {
        (target.cluster, topic)
        for flow in flows for target in flow.targets for topic in TOPICS
        if takes(flow, topic) and target_takes(target, topic)
    }  # fmt: skip
    assert taken == wanted


def test_a_flow_name_of_two_sources_is_refused() -> None:
    assert "another source" in faults("B->C.enabled=true\nmirrorlake.flow=all\n")[0]


# --- what cannot run ---


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("replication.policy.class=com.example.Mine", "python:package.module:Class"),
        ("A->B.topic.filter.class=com.example.Mine", "topics.exclude"),
        ("transforms=mask", "Change records elsewhere"),
        ("A.security.protocol=SASL_SSL\nA.sasl.mechanism=GSSAPI", "use SCRAM"),
        (SASL + "A.sasl.login.callback.handler.class=com.example.X", "cannot run here"),
        (SASL + "A.sasl.jaas.config=com.sun.security.auth.module.JndiLoginModule required a=b;", "login module"),
        (SASL + f'A.sasl.jaas.config={PLAIN} required username="u" password="p"; {PLAIN} required;', "more than one"),
        (SASL + f'A.sasl.jaas.config={PLAIN} required username="u" password="p"', "does not end with ;"),
        (SASL + "A.sasl.jaas.config=${vault:x:y}", "config provider"),
        ("clusters=", "is missing"),
        ("A.bootstrap.servers=nowhere", "is not host:port"),
        ("replication.factor=many", "replication_factor"),
        ("topics=a(", "not a regular expression"),
        ("A->B.enabled=yes", "must be true or false"),
        ("mirrorlake.existing_recods=append", "did you mean existing_records"),
        ("A->B.mirrorlake.existing_records=perhaps", "must be"),
        ("bad=\\u12", "four hexadecimal digits"),
    ],
)
def test_what_cannot_run_is_refused_with_line_key_and_advice(line: str, advice: str) -> None:
    found = faults(line + "\n")
    assert any(advice in fault for fault in found), found
    assert all(fault.startswith("mm2.properties:") for fault in found)


def test_all_faults_come_at_once() -> None:
    found = faults("A.bootstrap.servers=nowhere\nreplication.factor=many\ntransforms=x\ntopics=a(\n")
    assert len(found) == 4
    assert [int(fault.split(":")[1]) for fault in found] == sorted(int(fault.split(":")[1]) for fault in found)


def test_our_own_naming_replaces_a_foreign_policy() -> None:
    made = config("replication.policy.class=com.example.Mine\nmirrorlake.naming=python:pkg.mod:Mine\n")
    assert made.flows["A"].targets[0].naming == "python:pkg.mod:Mine"


# --- configurations, ACLs, heartbeats ---


def test_what_mm2_does_beside_copying_is_on_where_the_file_is_silent() -> None:
    flow = config("").flows["A"]
    (target,) = flow.targets
    assert (flow.heartbeats.enabled, target.configs.enabled, target.acls.enabled) == (True, True, True)
    assert target.configs.exclude == list(MM2_CONFIG_EXCLUDES)


def test_what_mm2_does_beside_copying_is_taken_by_its_own_keys() -> None:
    flow = config(
        "sync.topic.configs.enabled=false\nA->B.sync.topic.configs.interval.seconds=5\n"
        "config.properties.exclude=segment\\\\..*, flush\\\\.ms\nuse.defaults.from=source\n"
        "sync.topic.acls.enabled=false\nsync.topic.acls.interval.seconds=7\n"
        "emit.heartbeats.enabled=false\nemit.heartbeats.interval.seconds=3\nheartbeats.topic.replication.factor=1\n"
    ).flows["A"]
    (target,) = flow.targets
    assert target.configs == ConfigSync(
        enabled=False, every_seconds=5, exclude=[r"segment\..*", r"flush\.ms"], use_defaults_from="source"
    )
    assert (target.acls.enabled, target.acls.every_seconds) == (False, 7)
    assert flow.heartbeats == Heartbeats(enabled=False, every_seconds=3, replication_factor=1)


def test_the_older_name_of_excluded_keys_is_taken_too() -> None:
    assert config("config.properties.blacklist=a\n").flows["A"].targets[0].configs.exclude == ["a"]


@pytest.mark.parametrize(
    "line", ["use.defaults.from=both", "sync.topic.configs.interval.seconds=soon", "sync.topic.acls.enabled=maybe"]
)
def test_a_value_that_cannot_be_is_refused_at_its_line(line: str) -> None:
    with pytest.raises(ConfigFault, match=line.partition("=")[0]):
        config(line + "\n")


def test_a_filter_of_ones_own_is_refused() -> None:
    with pytest.raises(ConfigFault, match=r"config\.property\.filter\.class"):
        config("config.property.filter.class=com.example.Mine\n")


# --- our own words ---


def test_our_words_reach_every_part() -> None:
    made = config(
        "mirrorlake.storage.root=/data\nmirrorlake.runner.driver_memory=4g\nmirrorlake.ingest.max_records_per_batch=10\n"
        "A->B.mirrorlake.existing_records=latest\nA->B.mirrorlake.provenance=false\nA->B.mirrorlake.sole_writer=true\n"
        "B.mirrorlake.producer.linger.ms=7\nA.mirrorlake.security.protocol=SSL\nA->B.mirrorlake.flow=main\n"
        "mirrorlake.runner.spark.spark.ui.enabled=false\n"
    )
    flow = made.flows["main"]
    assert (made.storage.root, made.runner.driver_memory) == ("/data", "4g")
    assert (flow.ingest.max_records_per_batch, flow.provenance) == (10, False)
    assert (flow.targets[0].existing_records, flow.targets[0].sole_writer) == ("latest", True)
    assert made.clusters["B"].producer == {"linger.ms": "7"}
    assert made.clusters["A"].security.protocol == "SSL"
    assert made.runner.spark == {"spark.ui.enabled": "false"}


# --- security ---


def jaas(options: str, module: str = PLAIN) -> str:
    return f"{SASL}A.sasl.jaas.config={module} required {options};\n"


def test_a_login_is_taken_apart() -> None:
    cluster = config(jaas('username="u" password="${env:PW}"')).clusters["A"]
    assert (cluster.security.username, cluster.security.mechanism) == ("u", "PLAIN")
    assert cluster.security.password is not None
    assert cluster.security.password.text == "${env:PW}"
    assert not cluster.allow_literal_secrets


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ("'a;b'", "a;b"),
        ("plain", "plain"),
        ('"Endpoint=sb://x/;K=v="', "Endpoint=sb://x/;K=v="),
    ],
)
def test_quotes_in_a_login_are_understood(written: str, value: str) -> None:
    assert parse_jaas(f"{PLAIN} required username=u password={written};").options["password"] == value


def test_a_password_written_out_runs_with_a_warning_that_does_not_repeat_it() -> None:
    made = draft(jaas('username="u" password="hunter2"'))
    cluster = build(made, "x").clusters["A"]
    assert cluster.allow_literal_secrets
    assert cluster.security.password is not None
    assert cluster.security.password.resolve() == "hunter2"
    assert any("unsafe" in str(note) and note.warns for note in made.notes if note.key == "A.sasl.jaas.config")
    assert "hunter2" not in str(made.notes)


REFERENCES = {
    "${file:/s/x.properties:KEY}": "${file:/s/x.properties:KEY}",
    "${env:NAME}": "${env:NAME}",
    "${dir:/s:pw}": "${file:/s/pw}",
    "${directory:/s/:pw}": "${file:/s/pw}",
    "${mine:/s:pw}": "${file:/s/pw}",
    "${secrets:ns/name:pw}": "${file:/etc/mirrorlake/secrets/name/pw}",
    "${secret:scope/key}": "${secret:scope/key}",
}


@pytest.mark.parametrize(("theirs", "ours"), REFERENCES.items())
def test_references_are_taken_over_unread(theirs: str, ours: str) -> None:
    provider = "config.providers=mine\nconfig.providers.mine.class=org.apache.kafka.common.config.provider."
    more = f"{provider}DirectoryConfigProvider\n" + jaas(f'username="u" password="{theirs}"')
    password = config(more).clusters["A"].security.password
    assert password is not None
    assert password.text == ours


def test_a_login_that_is_a_reference_as_a_whole_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "s.properties").write_text(f'J={PLAIN} required username="u" password="hunter2";\n')
    made = draft(f"{SASL}A.sasl.jaas.config=${{file:{tmp_path}/s.properties:J}}\n")
    assert build(made, "x").clusters["A"].security.username == "u"
    assert made.looked_up == {"A"}


def test_addresses_are_looked_up_when_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.properties").write_text("H=x:1,y:2\n")
    made = config(f"A.bootstrap.servers=${{file:{tmp_path}/s.properties:H}}\n")
    assert made.clusters["A"].bootstrap_servers == "x:1,y:2"


def test_what_a_reference_led_to_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG", "hunter2")
    found = faults("A.bootstrap.servers=${env:WRONG}\n")
    assert "is not host:port" in found[0]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    more = jaas('username="u" password="${env:P}"', module).replace("=PLAIN", f"={mechanism}")
    assert config(more).clusters["A"].security.mechanism == mechanism


def test_oauth() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    more = jaas('clientId="me" clientSecret="${env:P}" scope="s"', module).replace("=PLAIN", "=OAUTHBEARER")
    more += "A.sasl.oauthbearer.token.endpoint.url=https://idp.example/token\n"
    security = config(more).clusters["A"].security
    assert (security.username, security.scope, security.token_endpoint) == ("me", "s", "https://idp.example/token")


def test_unsafe_connections_run_with_a_warning() -> None:
    more = "A.security.protocol=SSL\nA.ssl.endpoint.identification.algorithm=\n"
    cluster = config(more).clusters["A"]
    assert (cluster.security.verify_hostname, cluster.allow_insecure) == (False, True)
    assert any(note.unsafe for note in draft(more).notes if note.key.endswith("algorithm"))
    assert any("plain text" in note for note in notes("", "B.bootstrap.servers"))
    plaintext = jaas('username="u" password="${env:P}"').replace("SASL_SSL", "SASL_PLAINTEXT")
    assert config(plaintext).clusters["A"].allow_insecure


def test_an_empty_host_name_check_means_nothing_in_plain_text() -> None:
    more = "A.ssl.endpoint.identification.algorithm=\n"
    assert config(more).clusters["A"].security.verify_hostname
    assert fates(more, "A.ssl.endpoint.identification.algorithm") == {Fate.NOT_NEEDED}


def test_a_java_truststore_is_taken_as_it_is() -> None:
    store = "A.ssl.truststore.location=/certs/my trust.jks\nA.ssl.truststore.password=${env:P}\n"
    security = config(f"A.security.protocol=SSL\n{store}").clusters["A"].security
    assert security.ca == "/certs/my trust.jks"
    assert str(security.ca_password) == "Secret(${env:P})"


def test_a_pem_store_is_taken_as_it_is() -> None:
    more = "A.security.protocol=SSL\nA.ssl.truststore.type=PEM\nA.ssl.truststore.location=/ca.pem\n"
    assert config(more).clusters["A"].security.ca == "/ca.pem"
    assert not any(note.warns for note in draft(more).notes if note.key.startswith("A.ssl"))


def test_a_file_that_is_there_decides_its_kind(tmp_path: Path) -> None:
    (tmp_path / "t.jks").write_text("-----BEGIN CERTIFICATE-----")
    more = f"A.security.protocol=SSL\nA.ssl.keystore.location={tmp_path}/t.jks\nA.ssl.keystore.type=JKS\n"
    assert config(more).clusters["A"].security.key == f"{tmp_path}/t.jks"


def test_a_java_keystore_keeps_its_passwords_apart() -> None:
    store = "A.ssl.keystore.location=/k.p12\nA.ssl.keystore.password=${env:P}\nA.ssl.key.password=${env:Q}\n"
    security = config(f"A.security.protocol=SSL\n{store}").clusters["A"].security
    assert (security.keystore, security.certificate, security.key) == ("/k.p12", None, None)
    assert (str(security.keystore_password), str(security.key_password)) == ("Secret(${env:P})", "Secret(${env:Q})")


def test_a_written_out_password_of_a_truststore_is_taken_with_a_warning() -> None:
    store = "A.ssl.truststore.location=/t.jks\nA.ssl.truststore.password=password\n"
    more = f"A.security.protocol=SSL\n{store}"
    assert config(more).clusters["A"].allow_literal_secrets
    assert any(note.unsafe for note in draft(more).notes if note.key == "A.ssl.truststore.password")


@pytest.mark.parametrize(
    ("host", "user", "kind"),
    [
        ("x.servicebus.windows.net:9093", "$ConnectionString", "event_hubs"),
        ("b.svc.eventstreams.cloud.ibm.com:9093", "token", "event_streams"),
        ("kafka.example:9093", "token", "kafka"),
    ],
)
def test_managed_services_are_known_by_their_hosts(host: str, user: str, kind: str) -> None:
    more = jaas(f'username="{user}" password="${{env:P}}"') + f"A.bootstrap.servers={host}\n"
    assert config(more).clusters["A"].kind == kind


# --- bad input ---

WORDS = st.sampled_from(
    ["clusters", "A", "B", "A->B.", ".", "=", ":", " ", "\n", "\\", "enabled", "true", "topics", "${", "}", "file",
     "sasl.jaas.config", "security.protocol", "SASL_SSL", '"', ";", "mirrorlake.", "x", ",", "->", "[", "(", "*"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(WORDS).map("".join), st.lists(WORDS).map(lambda words: BASE + "".join(words))))
def test_any_text_is_a_configuration_or_a_list_of_faults(text: str) -> None:
    made: Any = mm2.read(text, "x")
    with contextlib.suppress(ConfigFault):
        assert build(made, "x").flows
