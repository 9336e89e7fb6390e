"""A configuration is typed and whole, or refused with every fault, its line and its key."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorlake.config import MIB, Cluster, Config, Flow, Target, load, parse, with_root
from mirrorlake.errors import ConfigFault, UsageFault
from mirrorlake.tables import FolderTables
from mirrorlake.world import World, storage_root

CONF = Path(__file__).parents[2] / "conf"
CANARY = "hunter2canary"
GOOD = """\
clusters:
  src:
    bootstrap_servers: localhost:9092
  dr:
    bootstrap_servers: [a:1, b:2]
  hubs:
    kind: event_hubs
    bootstrap_servers: x.servicebus.windows.net:9093
    security:
      password: ${env:HUBS}
flows:
  orders:
    source: src
    topics: [orders]
    targets:
      - cluster: dr
      - cluster: hubs
"""


def changed(**fields: Any) -> str:
    """GOOD with some keys set: `orders__max_hops=2` sets flows.orders.max_hops."""
    document = yaml.safe_load(GOOD)
    document["flows"]["orders"] |= fields
    return yaml.safe_dump(document, sort_keys=False)


def with_cluster(**fields: Any) -> str:
    document = yaml.safe_load(GOOD)
    document["clusters"]["src"] |= fields
    return yaml.safe_dump(document, sort_keys=False)


def faults(text: str) -> dict[str, str]:
    with pytest.raises(ConfigFault) as caught:
        parse(text, "x.yml")
    found: dict[str, str] = {}
    for fault in caught.value.faults:
        found[fault.key] = f"{found.get(fault.key, '')} {fault.what}".strip()
    return found


# --- what is taken


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    assert load(path).path == path


def test_a_small_file_is_filled_with_defaults() -> None:
    config = parse(GOOD, "x.yml")
    flow = config.flow("orders")
    assert (flow.name, flow.start, flow.isolation, flow.max_hops) == (
        "orders",
        "earliest",
        "read_committed",
        1,
    )
    assert flow.ingest.max_bytes_per_batch == 256 * MIB
    assert config.clusters["dr"].bootstrap_servers == "a:1,b:2"
    assert config.storage.bronze == "bronze.{source}__{topic}"


def test_managed_services_fill_what_leaves_no_choice() -> None:
    security = parse(GOOD, "x.yml").clusters["hubs"].security
    assert (security.protocol, security.mechanism, security.username) == (
        "SASL_SSL",
        "PLAIN",
        "$ConnectionString",
    )


@pytest.mark.parametrize("topic", ["no", "on", "Yes", "2024-01-01", "0x10", "1e3", "007"])
def test_what_yaml_1_1_takes_for_something_else_stays_text(topic: str) -> None:
    text = GOOD.replace("[orders]", f"[{topic}]")
    assert parse(text, "x.yml").flow("orders").topics == [topic]


@pytest.mark.parametrize(
    ("start", "read"),
    [
        pytest.param("latest", "latest", id="a word"),
        pytest.param("2024-05-01T02:00:00+02:00", datetime(2024, 5, 1, tzinfo=timezone.utc), id="a time, in UTC"),
        pytest.param("2024-05-01T00:00:00Z", datetime(2024, 5, 1, tzinfo=timezone.utc), id="Z"),
    ],
)
def test_start_is_typed(start: str, read: object) -> None:
    assert parse(changed(start=start), "x.yml").flow("orders").start == read


def test_options_of_clients_may_be_numbers_and_booleans() -> None:
    text = with_cluster(client={"socket.keepalive.enable": True, "linger.ms": 5})
    assert parse(text, "x.yml").clusters["src"].client == {
        "socket.keepalive.enable": "true",
        "linger.ms": "5",
    }


def test_an_anchor_may_be_used_a_few_times() -> None:
    text = GOOD.replace("topics: [orders]", "topics: &t [orders]").replace(
        "cluster: dr", "cluster: dr\n        topics: *t"
    )
    assert parse(text, "x.yml").flow("orders").targets[0].topics == ["orders"]


# --- what is refused


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        pytest.param("", "", "mapping", id="empty"),
        pytest.param("[1, 2]", "", "mapping", id="not a mapping"),
        pytest.param("a: b: c", "", "YAML", id="syntax"),
        pytest.param("a: *nowhere", "", "undefined alias", id="an alias to nothing"),
        pytest.param("a: &a [*a]", "a[0]", "contains itself", id="an alias within itself"),
        pytest.param("a: &a []\nb: [" + "*a, " * 20 + "]", "", "aliases", id="an alias bomb"),
        pytest.param("[" * 5000, "", "nested", id="nested too deeply"),
        pytest.param("a: \x00", "", "YAML", id="a control character"),
        pytest.param("clusters: !!python/object:os.system x", "clusters", "tag", id="a tag"),
        pytest.param("? [a]\n: b", "", "plain text", id="a key that is a list"),
        pytest.param(GOOD + "runner: {}\nrunner: {}", "runner", "twice; first on line 18", id="a key twice"),
        pytest.param(GOOD + "path: x", "path", "unknown key", id="path is not yours to set"),
        pytest.param(changed(name="x"), "flows.orders.name", "unknown key", id="nor is a flow's name"),
        pytest.param(GOOD.replace("source:", "sorce:"), "flows.orders.sorce", "did you mean source", id="a typo"),
        pytest.param(GOOD.replace("source: src", ""), "flows.orders.source", "missing", id="a missing key"),
        pytest.param(changed(source="scr"), "flows.orders.source", "did you mean src", id="an unknown cluster"),
        pytest.param(
            changed(targets=[{"cluster": "q"}]), "flows.orders.targets[0].cluster", "unknown", id="target too"
        ),
        pytest.param(changed(targets=[{"cluster": "src"}]), "flows.orders.targets[0].cluster", "own source", id="loop"),
        pytest.param(
            changed(targets=[{"cluster": "dr"}, {"cluster": "dr"}]),
            "flows.orders.targets[1].cluster",
            "already",
            id="a target twice",
        ),
        pytest.param(changed(targets=[]), "flows.orders.targets", "empty", id="no target"),
        pytest.param(changed(topics=[]), "flows.orders.topics", "topics, patterns or both", id="nothing to take"),
        pytest.param(changed(topics=["a", "a"]), "flows.orders.topics[1]", "listed twice", id="a topic twice"),
        pytest.param(changed(topics=["a b"]), "flows.orders.topics[0]", "topic name", id="no topic name"),
        pytest.param(changed(topics=[".."]), "flows.orders.topics[0]", "topic name", id="dots are no topic name"),
        pytest.param(
            changed(topics=["x.y"], exclude=["x.*"]),
            "flows.orders.topics[0]",
            "exclude",
            id="listed and excluded",
        ),
        pytest.param(changed(patterns=["("]), "flows.orders.patterns[0]", "regular expression", id="no regex"),
        pytest.param(changed(start="yesterday"), "flows.orders.start", "earliest, latest", id="no time"),
        pytest.param(changed(start="2024-05-01T00:00:00"), "flows.orders.start", "zone", id="a time without a zone"),
        pytest.param(changed(max_hops=0), "flows.orders.max_hops", "greater than", id="out of range"),
        pytest.param(changed(max_hops="1"), "flows.orders.max_hops", "integer", id="text for a number"),
        pytest.param(changed(max_hops=True), "flows.orders.max_hops", "integer", id="a boolean for a number"),
        pytest.param(changed(isolation="none"), "flows.orders.isolation", "'read_committed' or", id="no such choice"),
        pytest.param(
            changed(provenance=False), "flows.orders.targets[0].sole_writer", "provenance", id="no provenance"
        ),
        pytest.param(changed(bronze="bronze"), "flows.orders.bronze", "schema.table", id="a template without schema"),
        pytest.param(changed(bronze="b.{x}"), "flows.orders.bronze", "{x}", id="an unknown placeholder"),
        pytest.param(
            changed(ingest={"max_bytes_per_batch": "1 Mb"}),
            "flows.orders.ingest.max_bytes_per_batch",
            "MiB",
            id="a unit",
        ),
        pytest.param(
            changed(targets=[{"cluster": "dr", "topics": ["other"]}]),
            "flows.orders.targets[0].topics[0]",
            "not among",
            id="narrowing to a topic that the flow does not take",
        ),
        pytest.param(
            changed(targets=[{"cluster": "dr", "naming": "python:os"}]),
            "flows.orders.targets[0].naming",
            "Class",
            id="naming",
        ),
        pytest.param(with_cluster(bootstrap_servers="h"), "clusters.src.bootstrap_servers", "host:port", id="no port"),
        pytest.param(
            with_cluster(bootstrap_servers="h:99999"),
            "clusters.src.bootstrap_servers",
            "host:port",
            id="port",
        ),
        pytest.param(GOOD.replace("  src:", "  s r:"), "clusters.s r", "a name begins", id="a bad alias"),
        pytest.param(GOOD.replace("orders:", "-o:"), "flows.-o", "a name begins", id="a bad flow name"),
        pytest.param(GOOD + "storage: {catalog: c}", "storage.volume", "missing", id="a catalog without a volume"),
        pytest.param(GOOD + "storage: {checkpoints: 5}", "storage.checkpoints", "text", id="no path"),
        pytest.param(GOOD + "storage: {checkpoints: ''}", "storage.checkpoints", "at least 1", id="an empty path"),
        pytest.param(GOOD + "runner: {spark: {a: b}}", "runner.spark.a", "spark.", id="no setting of Spark"),
        pytest.param(GOOD + "clusters: 5", "clusters", "twice", id="clusters twice"),
    ],
)
def test_a_fault_names_its_key_and_says_what_is_wrong(text: str, key: str, says: str) -> None:
    assert says in faults(text)[key]


@pytest.mark.parametrize(
    ("security", "key", "says"),
    [
        pytest.param({"protocol": "SASL_SSL"}, "mechanism", "missing", id="SASL without mechanism"),
        pytest.param({"protocol": "SASL_SSL", "mechanism": "PLAIN"}, "password", "missing", id="nor password"),
        pytest.param({"protocol": "SSL", "certificate": "c"}, "key", "both", id="a certificate without key"),
        pytest.param({"protocol": "PLAINTEXT", "username": "u"}, "username", "SASL_SSL", id="a user without SASL"),
        pytest.param({"protocol": "PLAINTEXT", "ca": "c"}, "ca", "no use", id="an authority without TLS"),
        pytest.param({"protocol": "SSL", "verify_hostname": False}, "verify_hostname", "allow_insecure", id="no check"),
        pytest.param(
            {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "u", "password": "${env:P}"},
            "protocol",
            "unencrypted",
            id="a password in the clear",
        ),
        pytest.param(
            {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": CANARY},
            "password",
            "reference",
            id="a password written out",
        ),
        pytest.param(
            {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": f"${{{CANARY}}}"},
            "password",
            "${env:NAME}",
            id="a malformed reference",
        ),
        pytest.param(
            {
                "protocol": "SASL_SSL",
                "mechanism": "OAUTHBEARER",
                "username": "u",
                "password": "${env:P}",
                "token_endpoint": "file:///etc/passwd",
            },
            "token_endpoint",
            "https://",
            id="tokens from a file",
        ),
    ],
)
def test_security_is_whole_and_safe(security: dict[str, Any], key: str, says: str) -> None:
    assert says in faults(with_cluster(security=security))[f"clusters.src.security.{key}"]


@pytest.mark.parametrize(
    "option",
    [
        "plugin.library.paths",
        "interceptor.classes",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
        "security.providers",
        "config.providers",
        "metric.reporters",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "enable.ssl.certificate.verification",
        "sasl.password",
        "SASL.JAAS.CONFIG",
        "ssl.key.pem",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "transactional.id",
        "bootstrap.servers",
    ],
)
@pytest.mark.parametrize("section", ["client", "producer", "consumer"])
def test_dangerous_and_fixed_options_are_refused(section: str, option: str) -> None:
    assert faults(with_cluster(**{section: {option: CANARY}}))[f"clusters.src.{section}.{option}"]


def test_a_literal_password_may_be_allowed_and_still_does_not_print() -> None:
    security = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": CANARY}
    config = parse(with_cluster(security=security, allow_literal_secrets=True), "x.yml")
    assert config.clusters["src"].security.password is not None
    assert CANARY not in repr(config) + str(config) + config.model_dump_json() + str(config.model_dump())


@pytest.mark.parametrize(
    ("bronze", "key"),
    [
        pytest.param("bronze.{source}__{topic}", "flows.again.topics[0]", id="one topic in two flows"),
        pytest.param("bronze.{source}", "flows.again", id="one table for all topics of a source"),
        pytest.param("bronze.{flow}__{topic}", None, id="a table for each flow"),
        pytest.param("bronze.{flow}", None, id="a shared table for each flow"),
    ],
)
def test_two_flows_may_not_write_one_bronze_table(bronze: str, key: str | None) -> None:
    document = yaml.safe_load(GOOD) | {"storage": {"bronze": bronze}}
    document["flows"]["again"] = document["flows"]["orders"]
    result = parsed(yaml.safe_dump(document, sort_keys=False))
    found = {fault.key for fault in result.faults} if isinstance(result, ConfigFault) else set()
    assert found == ({key} if key else set())


def test_a_listed_topic_is_taken_whatever_the_default_excludes() -> None:
    assert parse(changed(topics=["x.internal"]), "x.yml").flow("orders").topics == ["x.internal"]


def test_all_faults_come_at_once_in_the_order_of_their_lines() -> None:
    text = GOOD.replace("localhost:9092", "localhost").replace("source: src", "source: scr\n    max_hops: x")
    with pytest.raises(ConfigFault) as caught:
        parse(text + "runner: {paralelism: 2}\nrunner: 1\n", "conf/x.yml")
    assert [(fault.where, fault.key) for fault in caught.value.faults] == [
        ("conf/x.yml:3", "clusters.src.bootstrap_servers"),
        ("conf/x.yml:13", "flows.orders.source"),
        ("conf/x.yml:14", "flows.orders.max_hops"),
        ("conf/x.yml:19", "runner.paralelism"),
        ("conf/x.yml:20", "runner"),
    ]
    assert "5 faults" in str(caught.value)


# --- no fault hides another, and none causes one


def listed(text: str) -> list[tuple[int, str]]:
    """Line and key of every fault, in the order in which they are told."""
    result = parsed(text)
    assert isinstance(result, ConfigFault)
    return [(int(fault.where.rpartition(":")[2]), fault.key) for fault in result.faults]


def keys(text: str) -> list[str]:
    return sorted(key for _, key in listed(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            """\
clusters:
  src: {bootstrap_servers: "a:1"}
  dr: {bootstrap_servers: "b:1"}
flows:
  orders:
    source: src
    topics: [x, x, y]
    exclude: [y]
    provenance: false
    targets:
      - cluster: src
        colour: red
""",
            [
                (7, "flows.orders.topics[1]"),
                (7, "flows.orders.topics[2]"),
                (11, "flows.orders.targets[0].cluster"),
                (11, "flows.orders.targets[0].sole_writer"),
                (12, "flows.orders.targets[0].colour"),
            ],
            id="an unknown key and four rules of a flow",
        ),
        pytest.param(
            GOOD
            + """\
storage:
  foo: 1
  root: /r
  catalog: c
  ops_schema: a-b
runner:
  parallelism: many
""",
            [
                (19, "storage.foo"),
                (20, "storage.root"),
                (18, "storage.volume"),
                (22, "storage.ops_schema"),
                (24, "runner.parallelism"),
            ],
            id="an unknown key and three rules of the storage, a type of the runner",
        ),
        pytest.param(
            """\
clusters:
  s r:
    tier: standard
    bootstrap_servers: nowhere
    client: {acks: 1, linger.ms: [5]}
    security:
      protocol: SASL_SSL
      mechanism: PLANE
      verify_hostname: false
      certificate: c
flows:
  a:
    source: s r
    topics: [5, t, t, "b c"]
    max_hops: x
    targets:
      - null
      - cluster: nowhere
        topics: [u, u]
        replication_factor: 0
  b:
    source: s r
    topics: [t]
    targets: []
""",
            [
                (2, "clusters.s r"),
                (3, "clusters.s r.tier"),
                (4, "clusters.s r.bootstrap_servers"),
                (5, "clusters.s r.client.acks"),
                (5, "clusters.s r.client.linger.ms"),
                (6, "clusters.s r.security.username"),
                (6, "clusters.s r.security.password"),
                (6, "clusters.s r.security.key"),
                (8, "clusters.s r.security.mechanism"),
                (9, "clusters.s r.security.verify_hostname"),
                (13, "flows.a.source"),
                (14, "flows.a.topics[0]"),
                (14, "flows.a.topics[2]"),
                (14, "flows.a.topics[3]"),
                (15, "flows.a.max_hops"),
                (17, "flows.a.targets[0]"),
                (18, "flows.a.targets[1].cluster"),
                (19, "flows.a.targets[1].topics[1]"),
                (20, "flows.a.targets[1].replication_factor"),
                (22, "flows.b.source"),
                (23, "flows.b.topics[0]"),
                (24, "flows.b.targets"),
            ],
            id="names, types, choices, options, lists and rules, one below the other",
        ),
    ],
)
def test_faults_of_all_kinds_are_told_together_each_once_in_the_order_of_their_lines(
    text: str, expected: list[tuple[int, str]]
) -> None:
    told = listed(text)
    assert sorted(told) == sorted(expected)
    assert [line for line, _ in told] == sorted(line for line, _ in expected)


FAULTY: Mapping[str, tuple[Any, str]] = {
    "storage.foo": (1, "storage.foo"),
    "storage.codec": ("zip", "storage.codec"),
    "storage.catalog": ("c", "storage.volume"),
    "storage.ops_schema": ("a-b", "storage.ops_schema"),
    "clusters.src.tier": ("standard", "clusters.src.tier"),
    "clusters.src.producer": ({"acks": "1"}, "clusters.src.producer.acks"),
    "clusters.src.security": ({"verify_hostname": False}, "clusters.src.security.verify_hostname"),
    "clusters.hubs.foo": (1, "clusters.hubs.foo"),
    "clusters.hubs.bootstrap_servers": ("h", "clusters.hubs.bootstrap_servers"),
    "clusters.hubs.security.password": (CANARY, "clusters.hubs.security.password"),
    "flows.orders.max_hops": ("x", "flows.orders.max_hops"),
    "flows.orders.start": ("soon", "flows.orders.start"),
    "flows.orders.topics": (["orders", "orders"], "flows.orders.topics[1]"),
    "flows.orders.patterns": (["("], "flows.orders.patterns[0]"),
    "flows.orders.fanout": ({"foo": 1}, "flows.orders.fanout.foo"),
    "flows.orders.targets.0.naming": ("x", "flows.orders.targets[0].naming"),
    "flows.orders.targets.0.on_source_deleted": ("delete", "flows.orders.targets[0].on_source_deleted"),
    "flows.orders.targets.0.topics": (["a b"], "flows.orders.targets[0].topics[0]"),
    "flows.orders.targets.1.cluster": ("dr", "flows.orders.targets[1].cluster"),
    "flows.orders.targets.1.groups": ({"sync": "yes"}, "flows.orders.targets[1].groups.sync"),
    "runner.spark": ({"a": "b"}, "runner.spark.a"),
}


def faulty(*places: str) -> str:
    """GOOD with these of FAULTY."""
    document = yaml.safe_load(GOOD) | {"storage": {}, "runner": {}}
    for place in places:
        *path, last = place.split(".")
        node: Any = document
        for part in path:
            node = node[int(part) if isinstance(node, list) else part]
        node[last] = FAULTY[place][0]
    return yaml.safe_dump(document, sort_keys=False)


@pytest.mark.parametrize("place", FAULTY)
def test_no_fault_hides_another(place: str) -> None:
    for both in ({place, other} for other in FAULTY):
        assert keys(faulty(*both)) == sorted(FAULTY[each][1] for each in both)


def test_all_of_them_are_told_at_once() -> None:
    assert keys(faulty(*FAULTY)) == sorted(key for _, key in FAULTY.values())


SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": "${env:P}"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param(changed(topics="orders"), "flows.orders.topics", id="topics that are no list are not missing"),
        pytest.param(changed(topics=[], patterns=["("]), "flows.orders.patterns[0]", id="nor is a pattern"),
        pytest.param(GOOD.replace("topics:", "topcs:"), "flows.orders.topcs", id="nor are mistyped topics"),
        pytest.param(GOOD.replace("source:", "sorce:"), "flows.orders.sorce", id="nor is a mistyped source"),
        pytest.param(GOOD.replace("clusters:", "cluters:"), "cluters", id="nor are mistyped clusters, or all aliases"),
        pytest.param(GOOD.replace("flows:", "flow:"), "flow", id="nor are mistyped flows"),
        pytest.param("clusters: 5\n" + GOOD[GOOD.index("flows:") :], "clusters", id="clusters that are no mapping"),
        pytest.param("clusters: {}\n" + GOOD[GOOD.index("flows:") :], "clusters", id="no cluster"),
        pytest.param("clusters: !x y\n" + GOOD[GOOD.index("flows:") :], "clusters", id="a tag is told once"),
        pytest.param(GOOD.replace("source: src", "source: !x y"), "flows.orders.source", id="below a flow too"),
        pytest.param(GOOD.replace("- cluster: dr", "- !x y"), "flows.orders.targets[0]", id="and of a target"),
        pytest.param(changed(targets=[{"clutser": "dr"}]), "flows.orders.targets[0].clutser", id="a mistyped alias"),
        pytest.param(changed(targets=[5], provenance=False), "flows.orders.targets[0]", id="a target that is none"),
        pytest.param(
            changed(provenance=False, targets=[{"cluster": "dr", "sole_writer": "yes"}]),
            "flows.orders.targets[0].sole_writer",
            id="a rule does not ask for a value that is refused",
        ),
        pytest.param(
            changed(provenance=False, targets=[{"cluster": "dr", "sole_writter": True}]),
            "flows.orders.targets[0].sole_writter",
            id="nor for one whose key is mistyped",
        ),
        pytest.param(
            changed(topics=["a", 5], targets=[{"cluster": "dr", "topics": ["5"]}]),
            "flows.orders.topics[1]",
            id="a refused topic may be the one to narrow to",
        ),
        pytest.param(
            changed(patterns=["b("], targets=[{"cluster": "dr", "topics": ["b"]}]),
            "flows.orders.patterns[0]",
            id="or a refused pattern",
        ),
        pytest.param(changed(topics=["a b"], exclude=[".*"]), "flows.orders.topics[0]", id="nor is it excluded"),
        pytest.param(
            changed(on_source_loss="go on", targets=[{"cluster": "dr", "on_source_deleted": "delete"}]),
            "flows.orders.on_source_loss",
            id="a choice that is refused may be the one that is needed",
        ),
        pytest.param(GOOD.replace("event_hubs", "event_hub"), "clusters.hubs.kind", id="an unknown kind has a preset"),
        pytest.param(
            GOOD.replace("event_hubs", "event_hub").replace(
                "    bootstrap_servers: x.servicebus.windows.net:9093\n", ""
            ),
            "clusters.hubs.kind",
            id="and servers",
        ),
        pytest.param(GOOD.replace("kind:", "knd:"), "clusters.hubs.knd", id="a mistyped kind too"),
        pytest.param(
            GOOD.replace(
                "      password: ${env:HUBS}\n", "      password: ${env:HUBS}\n      protocol: SASL_PLAINTEXT\n"
            ).replace("    security:", "    allow_insecure: true\n    security:"),
            "clusters.hubs.security.protocol",
            id="a protocol that the service refuses needs nothing else",
        ),
        pytest.param(
            with_cluster(security=SASL | {"protocol": "SASL"}),
            "clusters.src.security.protocol",
            id="all has its use with a protocol that is refused",
        ),
        pytest.param(
            with_cluster(security={key: SASL[key] for key in SASL if key != "mechanism"} | {"scope": "s"}),
            "clusters.src.security.mechanism",
            id="or with a mechanism that is missing",
        ),
        pytest.param(
            with_cluster(security=SASL | {"password": CANARY}, allow_literal_secrets="yes"),
            "clusters.src.allow_literal_secrets",
            id="a permission that is refused may be one",
        ),
        pytest.param(GOOD + "storage: {catalog: c, volum: /Volumes/v}", "storage.volum", id="a mistyped volume"),
        pytest.param(GOOD + "storage: {catalog: 5, root: r}", "storage.catalog", id="a catalog that is refused"),
        pytest.param(GOOD.replace("orders:", "-o:", 1), "flows.-o", id="a wrong name is told once"),
        pytest.param(changed(name=5), "flows.orders.name", id="a key that is not yours too"),
    ],
)
def test_a_value_that_is_refused_causes_no_further_fault(text: str, key: str) -> None:
    assert keys(text) == [key]


def test_a_table_that_is_not_known_is_not_shared() -> None:
    document = yaml.safe_load(GOOD)
    document["flows"]["again"] = document["flows"]["orders"] | {"bronze": "no schema"}
    assert keys(yaml.safe_dump(document, sort_keys=False)) == ["flows.again.bronze"]


# --- files


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.yml", "b.yml"):
        with pytest.raises(UsageFault, match=name):
            load(tmp_path / name)


# --- choosing


def test_a_flow_is_found_by_name_or_the_names_are_listed() -> None:
    config = parse(GOOD, "x.yml")
    with pytest.raises(UsageFault, match="did you mean orders"):
        config.flow("order")


def test_select_keeps_flows_and_targets() -> None:
    config = parse(GOOD, "x.yml")
    assert config.select([], []) == config
    assert [target.cluster for target in config.select([], ["dr"]).flow("orders").targets] == ["dr"]
    with pytest.raises(UsageFault, match="No flow writes to src"):
        config.select(["orders"], ["src"])
    with pytest.raises(UsageFault, match="unknown cluster q"):
        config.select([], ["q"])


def test_the_root_of_the_command_line_comes_first() -> None:
    config = parse(GOOD, "x.yml")
    assert with_root(config, "/r").storage.root == "/r"
    assert with_root(config, None) is config


@pytest.mark.parametrize(
    ("storage", "folder"),
    [
        pytest.param({"root": "/r"}, "/r/checkpoints", id="below the root"),
        pytest.param({"root": "/r", "checkpoints": "c/d"}, "/r/c/d", id="relative to the root"),
        pytest.param({"root": "/r", "checkpoints": "/fast/c"}, "/fast/c", id="elsewhere"),
        pytest.param({"catalog": "c", "volume": "/Volumes/v"}, "/Volumes/v/checkpoints", id="below the volume"),
        pytest.param(
            {"catalog": "c", "volume": "/Volumes/v", "checkpoints": "d"}, "/Volumes/v/d", id="relative to the volume"
        ),
        pytest.param(
            {"catalog": "c", "volume": "/Volumes/v", "checkpoints": "/Volumes/w"}, "/Volumes/w", id="another volume"
        ),
    ],
)
def test_checkpoints_lie_where_the_configuration_says(storage: dict[str, str], folder: str) -> None:
    config = parse(yaml.safe_dump(yaml.safe_load(GOOD) | {"storage": storage}), "x.yml")
    root = storage_root(config)
    assert World(config, root, None, FolderTables(root), {}, {}, {}).checkpoints == Path(folder)


def test_checkpoints_follow_the_root_of_the_command_line() -> None:
    config = with_root(parse(GOOD + "storage: {root: /r, checkpoints: c}", "x.yml"), "/s")
    root = storage_root(config)
    assert World(config, root, None, FolderTables(root), {}, {}, {}).checkpoints == Path("/s/c")


def test_built_by_hand_the_same_rules_hold() -> None:
    flow = Flow(name="f", source="a", topics=["t"], targets=[Target(cluster="b")])
    with pytest.raises(ValueError, match="unknown cluster b"):
        Config(clusters={"a": Cluster(bootstrap_servers="h:1")}, flows={"f": flow})


# --- nothing else comes out


def parsed(text: str) -> Config | ConfigFault:
    try:
        return parse(text, "x.yml")
    except ConfigFault as fault:
        return fault


def only_config_fault(text: str) -> None:
    result = parsed(text)
    if isinstance(result, ConfigFault):
        assert result.faults
        assert len(set(result.faults)) == len(result.faults)
        assert all(fault.where.startswith("x.yml:") for fault in result.faults)


@given(st.text())
@example("? ")
@example("a: !!int x")
@example("a: !!binary '='")
@example("%YAML 9.9\n---\n")
@example("a: 1\n---\nb: 2")
@example("<<: *x")
def test_any_text_gives_a_config_or_a_config_fault(text: str) -> None:
    only_config_fault(text)


@given(
    st.lists(
        st.sampled_from([*"{}[]:,&*!|>'\"%@` \n-?#~<", "a", "1", "flows", "clusters", "- ", ": "]),
        max_size=40,
    )
)
def test_any_yaml_like_text_gives_a_config_or_a_config_fault(pieces: list[str]) -> None:
    only_config_fault("".join(pieces))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """GOOD with up to three values somewhere replaced by anything."""
    document = yaml.safe_load(GOOD) | {"storage": {"bronze": "b.x"}, "runner": {"spark": {}}}
    for _ in range(draw(st.integers(1, 3))):
        replace_one(draw, document)
    return yaml.safe_dump(document)


def replace_one(draw: st.DrawFn, document: dict[str, Any]) -> None:
    node: Any = document
    while True:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], dict | list) or not node[key] or draw(st.booleans()):
            node[key] = draw(values)
            return
        node = node[key]


@given(mutated())
@settings(max_examples=200)
def test_any_wrong_value_anywhere_gives_a_config_or_a_config_fault(text: str) -> None:
    only_config_fault(text)


@pytest.mark.parametrize(
    "noise", ["", ":", " ", "\n", "'", '"', "*", "&", "!", "!!int ", "[", "{", "}", "\t", "%", "- ", "|"]
)
def test_a_secret_never_shows_in_a_fault_wherever_the_file_is_broken(noise: str) -> None:
    text = GOOD.replace("${env:HUBS}", CANARY)
    secret = text.index(CANARY)
    for at in [*range(secret - 24, secret + 1), *range(secret + len(CANARY), secret + len(CANARY) + 12)]:
        result = parsed(text[:at] + noise + text[at:])
        assert CANARY not in f"{result} {result!r} {getattr(result, 'faults', '')}"


def test_a_resolved_secret_is_in_no_copy_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBS", CANARY)
    config = parse(GOOD, "x.yml")
    password = config.clusters["hubs"].security.password
    assert password is not None
    assert password.resolve() == CANARY
    pickled = pickle.dumps(config)
    assert CANARY.encode() not in pickled
    assert pickle.loads(pickled) == config  # noqa: S301
    assert CANARY not in repr(config) + str(config) + config.model_dump_json()
