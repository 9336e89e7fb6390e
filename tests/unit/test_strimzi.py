"""A Strimzi resource: clusters, secrets by file, mirrors; and what it must be."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake import strimzi
from mirrorlake.config import Config, Security
from mirrorlake.errors import ConfigFault
from mirrorlake.files import build
from mirrorlake.mm2 import Draft
from mirrorlake.mm2keys import Fate

SECRETS = "/mnt/secrets"


def resource(version: str = "v1beta2") -> dict[str, Any]:
    return {
        "apiVersion": f"kafka.strimzi.io/{version}",
        "kind": "KafkaMirrorMaker2",
        "metadata": {"name": "mm2"},
        "spec": {
            "connectCluster": "b",
            "clusters": [{"alias": "a", "bootstrapServers": "a:9092"}, {"alias": "b", "bootstrapServers": "b:9092"}],
            "mirrors": [{"sourceCluster": "a", "targetCluster": "b", "sourceConnector": {}}],
        },
    }


def v1() -> dict[str, Any]:
    spec = {
        "target": {"alias": "b", "bootstrapServers": "b:9092", "groupId": "g", "configStorageTopic": "c"},
        "mirrors": [{"source": {"alias": "a", "bootstrapServers": "a:9092"}, "sourceConnector": {}}],
    }
    return {"apiVersion": "kafka.strimzi.io/v1", "kind": "KafkaMirrorMaker2", "metadata": {"name": "x"}, "spec": spec}


def draft(value: dict[str, Any]) -> Draft:
    return strimzi.read(yaml.safe_dump(value, sort_keys=False), "mm2.yaml", SECRETS)


def config(value: dict[str, Any]) -> Config:
    return build(draft(value), "mm2.yaml")


def faults(value: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigFault) as refused:
        config(value)
    return [str(fault) for fault in refused.value.faults]


def with_cluster(**keys: Any) -> dict[str, Any]:
    value = resource()
    value["spec"]["clusters"][0].update(keys)
    return value


def with_mirror(**keys: Any) -> dict[str, Any]:
    value = resource()
    value["spec"]["mirrors"][0].update(keys)
    return value


def security(**keys: Any) -> Security:
    return config(with_cluster(**keys)).clusters["a"].security


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1beta2"])
def test_clusters_and_mirrors(version: str) -> None:
    made = config(resource(version))
    assert made.clusters["a"].bootstrap_servers == "a:9092"
    assert made.flows["a"].patterns == [".*"]
    assert [target.cluster for target in made.flows["a"].targets] == ["b"]


def test_v1_has_one_target_and_a_source_for_each_mirror() -> None:
    made = config(v1())
    assert (made.flows["a"].source, made.flows["a"].targets[0].cluster) == ("a", "b")


def test_a_resource_among_others_and_in_a_list_is_found() -> None:
    text = "---\nkind: Secret\n---\n# ours\n" + yaml.safe_dump(resource())
    assert build(strimzi.read(text, "x", SECRETS), "x").flows
    assert config({"kind": "List", "apiVersion": "v1", "items": [resource()]}).flows


# --- secrets and security ---

PASSWORD = {"secretName": "s", "password": "pw"}
TRUST = {"trustedCertificates": [{"secretName": "ca", "certificate": "ca.crt"}]}


def test_trusted_certificates_are_files_of_the_mounted_secret() -> None:
    found = security(tls=TRUST)
    assert (found.protocol, found.ca) == ("SSL", f"{SECRETS}/ca/ca.crt")


def test_tls_without_certificates_trusts_the_system() -> None:
    assert security(tls={}).protocol == "SSL"
    assert security(tls={"trustedCertificates": []}).ca is None


def test_several_certificates_need_one_file_and_the_command_is_told() -> None:
    two = {"trustedCertificates": [{"secretName": "x", "certificate": "1"}, {"secretName": "y", "pattern": "*.crt"}]}
    made = draft(with_cluster(tls=two))
    assert build(made, "x").clusters["a"].security.ca == f"{SECRETS}/a-ca.pem"
    assert any(f"cat {SECRETS}/x/1 {SECRETS}/y/*.crt > {SECRETS}/a-ca.pem" in note.text for note in made.notes)


@pytest.mark.parametrize(
    ("kind", "mechanism"),
    [("plain", "PLAIN"), ("scram-sha-256", "SCRAM-SHA-256"), ("scram-sha-512", "SCRAM-SHA-512")],
)
@pytest.mark.parametrize("tls", [True, False])
def test_users(kind: str, mechanism: str, tls: bool) -> None:
    login = {"type": kind, "username": 'me"', "passwordSecret": PASSWORD}
    cluster = config(with_cluster(authentication=login, **({"tls": {}} if tls else {}))).clusters["a"]
    found = cluster.security
    assert (found.mechanism, found.username) == (mechanism, 'me"')
    assert found.password is not None
    assert found.password.text == f"${{file:{SECRETS}/s/pw}}"
    assert (found.protocol, cluster.allow_insecure) == (("SASL_SSL", False) if tls else ("SASL_PLAINTEXT", True))
    assert not cluster.allow_literal_secrets


def test_mutual_tls() -> None:
    pair = {"secretName": "u", "certificate": "user.crt", "key": "user.key"}
    found = security(tls=TRUST, authentication={"type": "tls", "certificateAndKey": pair})
    assert (found.certificate, found.key) == (f"{SECRETS}/u/user.crt", f"{SECRETS}/u/user.key")


def test_oauth() -> None:
    login = {
        "type": "oauth", "clientId": "me", "clientSecret": {"secretName": "o", "key": "k"}, "scope": "s",
        "tokenEndpointUri": "https://idp.example/token",
    }  # fmt: skip
    found = security(tls={}, authentication=login)
    assert (found.mechanism, found.username, found.scope) == ("OAUTHBEARER", "me", "s")
    assert found.token_endpoint == "https://idp.example/token"
    assert found.password is not None
    assert found.password.text == f"${{file:{SECRETS}/o/k}}"


def test_custom_authentication_of_v1() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="u" password="${{secrets:ns/s:pw}}";',
    }
    found = security(tls={}, authentication={"type": "custom", "sasl": True, "config": options})
    assert (found.protocol, found.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert found.password is not None
    assert found.password.text == f"${{file:{SECRETS}/s/pw}}"


def test_an_annotation_names_the_folder_of_secrets_and_other_words_of_ours() -> None:
    value = with_cluster(tls=TRUST)
    value["metadata"]["annotations"] = {"mirrorlake.secrets-dir": "/other", "mirrorlake.storage.root": "/data"}
    made = build(strimzi.read(yaml.safe_dump(value), "x"), "x")
    assert made.clusters["a"].security.ca == "/other/ca/ca.crt"
    assert made.storage.root == "/data"


def test_without_a_folder_one_is_assumed_and_told() -> None:
    made = strimzi.read(yaml.safe_dump(with_cluster(tls=TRUST)), "x")
    assert any("is assumed" in note.text and note.warns for note in made.notes)


def test_what_strimzi_drops_from_config_is_not_taken() -> None:
    made = draft(with_cluster(config={"security.protocol": "SSL", "metadata.max.age.ms": 5000}))
    cluster = build(made, "x").clusters["a"]
    assert (cluster.security.protocol, cluster.client) == ("PLAINTEXT", {"metadata.max.age.ms": "5000"})
    assert any(note.fate is Fate.UNKNOWN and "Strimzi drops it" in note.text for note in made.notes)


def test_host_names_unchecked_run_with_a_warning() -> None:
    made = draft(with_cluster(tls=TRUST, config={"ssl.endpoint.identification.algorithm": ""}))
    assert build(made, "x").clusters["a"].allow_insecure
    assert any(note.unsafe for note in made.notes if note.key.endswith("algorithm"))


# --- mirrors ---


@pytest.mark.parametrize("exclude", ["topicsExcludePattern", "topicsBlacklistPattern"])
def test_topics(exclude: str) -> None:
    flow = config(with_mirror(topicsPattern="orders,pay.*", **{exclude: "pay.x"})).flows["a"]
    assert (flow.topics, flow.patterns, flow.exclude[0]) == (["orders"], ["pay.*"], "pay.x")


@pytest.mark.parametrize("exclude", ["groupsExcludePattern", "groupsBlacklistPattern"])
def test_groups(exclude: str) -> None:
    groups = config(with_mirror(groupsPattern="shop.*,bank", **{exclude: "shop-test"})).flows["a"].targets[0].groups
    assert (groups.include, groups.exclude) == (["shop.*", "bank"], ["shop-test"])


def test_the_checkpoint_connector_of_the_lab_syncs_groups_every_five_seconds() -> None:
    options = {"sync.group.offsets.enabled": True, "sync.group.offsets.interval.seconds": 5,
               "emit.checkpoints.interval.seconds": 30, "offset.lag.max": 0}  # fmt: skip
    groups = config(with_mirror(checkpointConnector={"config": options})).flows["a"].targets[0].groups
    assert (groups.sync, groups.sync_seconds, groups.checkpoint_seconds, groups.every_seconds) == (True, 5, 30, 5)


def test_the_connectors_settings_go_through_the_same_table() -> None:
    policy = "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy"
    options = {"replication.factor": -1, "replication.policy.class": policy, "producer.override.linger.ms": 7,
               "consumer.auto.offset.reset": "latest", "mirrorlake.existing_records": "append"}  # fmt: skip
    made = config(with_mirror(sourceConnector={"tasksMax": 4, "config": options}))
    target = made.flows["a"].targets[0]
    assert (target.naming, target.existing_records, target.replication_factor) == ("identity", "append", -1)
    assert made.flows["a"].start == "latest"
    assert made.clusters["b"].producer == {"linger.ms": "7"}


def test_every_key_has_a_note() -> None:
    value = with_mirror(
        sourceConnector={"tasksMax": 1, "autoRestart": {"enabled": True}, "config": {"offset.lag.max": 0}},
        checkpointConnector={"config": {"emit.checkpoints.interval.seconds": 5}},
        heartbeatConnector={"config": {"emit.heartbeats.interval.seconds": 5}},
        targetConnector={},
    )
    value["spec"].update({"version": "3.7.0", "replicas": 2, "nonsense": 1})
    noted = {note.key for note in draft(value).notes}
    mirror = "spec.mirrors[0]"
    assert noted >= {
        "spec.version", "spec.replicas", "spec.nonsense", "spec.connectCluster", f"{mirror}.targetConnector",
        f"{mirror}.sourceConnector.tasksMax", f"{mirror}.sourceConnector.autoRestart",
        f"{mirror}.sourceConnector.config.offset.lag.max",
        f"{mirror}.checkpointConnector.config.emit.checkpoints.interval.seconds",
        f"{mirror}.heartbeatConnector.config.emit.heartbeats.interval.seconds",
    }  # fmt: skip


@pytest.mark.parametrize("halted", [{"pause": True}, {"state": "stopped"}, {"state": "paused"}])
def test_a_paused_mirror_stays_paused(halted: dict[str, Any]) -> None:
    assert "no pair is enabled" in faults(with_mirror(sourceConnector=halted))[0]


# --- what is refused ---


def broken(change: str) -> dict[str, Any]:
    value = resource()
    spec = value["spec"]
    changes: dict[str, Any] = {
        "connectCluster": lambda: spec.update(connectCluster="nowhere"),
        "version": lambda: value.update(apiVersion="kafka.strimzi.io/v2"),
        "source": lambda: spec["mirrors"][0].update(sourceCluster="nowhere"),
        "no mirrors": lambda: spec.pop("mirrors"),
        "no clusters": lambda: spec.pop("clusters"),
        "no servers": lambda: spec["clusters"][0].pop("bootstrapServers"),
        "twice": lambda: spec["mirrors"].append(spec["mirrors"][0].copy()),
        "authentication": lambda: spec["clusters"][0].update(authentication={"type": "kerberos"}),
        "no password": lambda: spec["clusters"][0].update(authentication={"type": "plain", "username": "u"}),
        "a list": lambda: spec.update(clusters={"a": 1}),
        "alias twice": lambda: spec["clusters"].append({"alias": "a", "bootstrapServers": "z:1"}),
    }
    changes[change]()
    return value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("connectCluster", "spec.connectCluster: nowhere is not among"), ("version", "apiVersion: must be"),
        ("source", "sourceCluster: nowhere is not among"), ("no mirrors", "spec.mirrors: is missing"),
        ("no clusters", "clusters are missing"), ("no servers", "spec.clusters[0].bootstrapServers: is missing"),
        ("twice", "a->b is mirrored twice"), ("authentication", "authentication.type: is not supported"),
        ("no password", "passwordSecret.secretName: is missing"), ("a list", "must be a list of mappings"),
        ("alias twice", "a is described twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line_and_key(change: str, said: str) -> None:
    found = faults(broken(change))
    assert any(said in fault for fault in found), found
    assert all(fault.startswith("mm2.yaml:") for fault in found)


def test_bad_yaml_is_a_fault() -> None:
    made = strimzi.read("kind: KafkaMirrorMaker2\nspec: [", "x")
    with pytest.raises(ConfigFault, match="YAML"):
        build(made, "x")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(
        ["alias", "clusters", "mirrors", "tls", "authentication", "type", "config", "sourceCluster", "x"]), below),
    max_leaves=10,
)  # fmt: skip


@given(st.sampled_from(["spec", "metadata", "clusters", "mirrors", "tls", "authentication", "sourceConnector"]), VALUES)
def test_any_resource_is_a_configuration_or_a_list_of_faults(place: str, junk: Any) -> None:
    value = resource()
    holder = {"spec": value, "metadata": value, "clusters": value["spec"], "mirrors": value["spec"]}
    holder |= {"tls": value["spec"]["clusters"][0], "authentication": value["spec"]["clusters"][1]}
    holder.get(place, value["spec"]["mirrors"][0])[place] = junk
    with contextlib.suppress(ConfigFault):
        assert config(value).flows
