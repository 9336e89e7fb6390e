"""Every way to connect, in both dialects, against real brokers; and every wrong one refused with its cure."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from harness import wait_until
from tokens import Issuer, token_endpoint

from mirrorlake import jars, tls
from mirrorlake.clusters import (
    ENVIRONMENT_PROVIDER,
    FILE_PROVIDER,
    librdkafka_admin,
    properties_escape,
    resolved,
    secrets_file_lines,
    spark_kafka_options,
)
from mirrorlake.config import Cluster, Config, parse
from mirrorlake.errors import AccessRefused, UsageFault
from mirrorlake.kafka import Cluster as Live
from mirrorlake.lab import ClusterSpec, Lab, LabCluster, certs

PASSWORD = 'quote " back\\slash = $ümlaut'
STORE_PASSWORD = "store pass"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS = {"ann": PASSWORD, "eve": "simple"}
ANY_NAME = {"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}


# --- brokers ---


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[tuple[str, Path]]:
    """(URL, its authority)"""
    folder = tmp_path_factory.mktemp("tokens")
    with token_endpoint(folder, issuer, {"ann": "client-secret"}) as url:
        yield url, folder / "ca.pem"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, small_brokers: None, issuer: Issuer) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("secure")
    keys = folder / "jwks.json"
    keys.write_text(issuer.jwks())
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    oauth = {
        "listener.name.client.oauthbearer.sasl.server.callback.handler.class": handler,
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "lab",
    }
    jvm = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
    sasl: dict[str, Any] = {"users": USERS, "mechanisms": MECHANISMS, "jvm": jvm, "config": oauth}
    specs = [
        ClusterSpec("mutual", protocol="SSL", config={"ssl.client.auth": "required", **ANY_NAME}),
        ClusterSpec("tls", protocol="SSL"),
        ClusterSpec("sasl-ssl", protocol="SASL_SSL", **sasl),
        ClusterSpec("sasl-plain", protocol="SASL_PLAINTEXT", **sasl),
    ]
    with Lab(folder / "lab") as lab:
        lab.up(specs)
        for name in ("mutual", "tls"):
            make_stores(lab.cluster(name).folder)
        yield lab


def make_stores(folder: Path) -> None:
    """The lab's PEM files in Java's formats too: PKCS12 with our own library, JKS with Java's tool."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    own = x509.load_pem_x509_certificate((folder / "client.crt").read_bytes())
    key: Any = load_pem_private_key((folder / "client.key").read_bytes(), None)
    secret = BestAvailableEncryption(STORE_PASSWORD.encode())
    trusted = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ca, b"ca")], secret)
    (folder / "trust.p12").write_bytes(trusted)
    (folder / "key.p12").write_bytes(pkcs12.serialize_key_and_certificates(b"me", key, own, [ca], secret))
    for name in ("trust", "key"):
        convert = ["-srckeystore", f"{folder}/{name}.p12", "-destkeystore", f"{folder}/{name}.jks"]
        passwords = ["-srcstorepass", STORE_PASSWORD, "-deststorepass", STORE_PASSWORD, "-deststoretype", "JKS"]
        keytool = jars.java().parent / "keytool"
        command = [str(keytool), "-importkeystore", "-noprompt", *convert, *passwords]
        subprocess.run(command, check=True, capture_output=True)


# --- ways to connect ---


def login(mechanism: str, url: str, token_ca: Path) -> dict[str, str]:
    if mechanism == "OAUTHBEARER":
        return {"mechanism": mechanism, "username": "ann", "password": "${env:CLIENT_SECRET}",
                "token_endpoint": url, "token_ca": str(token_ca), "scope": "kafka"}  # fmt: skip
    return {"mechanism": mechanism, "username": "ann", "password": "${env:PASSWORD}"}


def ways(lab: Lab, url: str, token_ca: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a user may write -> (cluster, its `security`)."""
    mutual, open_tls, sasl = (lab.cluster(name).folder for name in ("mutual", "tls", "sasl-ssl"))
    pem = {"certificate": f"{mutual}/client.crt", "key": f"{mutual}/client.key"}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "mutual TLS, PEM": ("mutual", {"ca": f"{mutual}/ca.pem", **pem}),
        "TLS, a CA alone": ("tls", {"ca": f"{open_tls}/ca.pem"}),
    }
    for kind, ending in (("PKCS12", "p12"), ("JKS", "jks")):
        stores = {"ca": f"{mutual}/trust.{ending}", "ca_password": "${env:STORE}", "keystore": f"{mutual}/key.{ending}",
                  "keystore_password": "${env:STORE}"}  # fmt: skip
        found[f"mutual TLS, {kind}"] = ("mutual", stores)
        truststore = {"ca": f"{open_tls}/trust.{ending}", "ca_password": "${env:STORE}"}
        found[f"TLS, a {kind} truststore alone"] = ("tls", truststore)
    for mechanism in MECHANISMS:
        user = login(mechanism, url, token_ca)
        found[f"SASL_SSL, {mechanism}, a CA alone"] = ("sasl-ssl", {"ca": f"{sasl}/ca.pem", **user})
        found[f"SASL_PLAINTEXT, {mechanism}"] = ("sasl-plain", user)
    return found


def wrong_ways(lab: Lab, url: str, token_ca: Path, folder: Path) -> dict[str, tuple[str, dict[str, Any], str]]:
    """What is refused -> (cluster, its `security`, a word of the cure)."""
    mutual, sasl = lab.cluster("mutual").folder, lab.cluster("sasl-ssl").folder
    other = certs.authority("another CA")
    (folder / "other-ca.pem").write_bytes(other.certificate_pem)
    (folder / "other.pem").write_bytes(certs.issue(other, "client").pem)
    own = {"certificate": f"{mutual}/client.crt", "key": f"{mutual}/client.key"}
    foreign = {"certificate": f"{folder}/other.pem", "key": f"{folder}/other.pem"}
    plain = login("PLAIN", url, token_ca)
    return {
        "an unknown authority": ("mutual", {"ca": f"{folder}/other-ca.pem", **own}, "security.ca"),
        "no client certificate": ("mutual", {"ca": f"{mutual}/ca.pem"}, "security.certificate"),
        "a foreign client certificate": ("mutual", {"ca": f"{mutual}/ca.pem", **foreign}, "security.certificate"),
        "a wrong password": (
            "sasl-ssl", {"ca": f"{sasl}/ca.pem", **plain, "password": "${env:WRONG}"}, "security.username"),
        "a wrong SCRAM password": (
            "sasl-ssl",
            {"ca": f"{sasl}/ca.pem", **login("SCRAM-SHA-512", url, token_ca), "password": "${env:WRONG}"},
            "security.username"),
        "a wrong client secret": (
            "sasl-ssl",
            {"ca": f"{sasl}/ca.pem", **login("OAUTHBEARER", url, token_ca), "password": "${env:WRONG}"},
            "security.token_endpoint"),
        "an endpoint of an unknown authority": (
            "sasl-ssl", {"ca": f"{sasl}/ca.pem", **login("OAUTHBEARER", url, Path(f"{sasl}/ca.pem"))},
            "security.token_ca"),
    }  # fmt: skip


def configured(lab: Lab, name: str, security: dict[str, Any], servers: str = "", **fields: Any) -> Cluster:
    spec = lab.cluster(name).spec
    cluster = {
        "bootstrap_servers": servers or lab.cluster(name).bootstrap_servers,
        "security": {"protocol": spec.protocol, **security},
        "allow_insecure": spec.protocol == "SASL_PLAINTEXT",
        **fields,
    }
    return as_config(cluster).clusters["a"]


def as_config(cluster: dict[str, Any]) -> Config:
    flow = {"source": "a", "topics": ["t"], "targets": [{"cluster": "b"}]}
    text = yaml.safe_dump({"clusters": {"a": cluster, "b": {"bootstrap_servers": "b:1"}}, "flows": {"f": flow}})
    return parse(text, "x.yml")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"PASSWORD": PASSWORD, "CLIENT_SECRET": "client-secret", "STORE": STORE_PASSWORD, "WRONG": "wrong",
               "SIMPLE": "simple"}  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)


# --- librdkafka ---


def ask(cluster: Cluster, seconds: float = 20) -> str:
    """`ok`, or what is to be done."""
    try:
        live = Live("a", resolved(librdkafka_admin("a", cluster)), timeout_seconds=seconds)
        return "ok" if live.broker_count() == 1 else "no broker"
    except AccessRefused as refused:
        return refused.next_step


def ask_all(clusters: dict[str, Cluster], seconds: float = 20) -> dict[str, str]:
    with ThreadPoolExecutor(len(clusters)) as threads:
        answers = threads.map(lambda cluster: ask(cluster, seconds), clusters.values())
        return dict(zip(clusters, answers, strict=True))


def test_librdkafka_connects_in_every_way(secure: Lab, endpoint: tuple[str, Path]) -> None:
    good = {way: configured(secure, *both) for way, both in ways(secure, *endpoint).items()}
    assert ask_all(good) == dict.fromkeys(good, "ok")


def test_librdkafka_is_refused_with_the_cure(secure: Lab, endpoint: tuple[str, Path], tmp_path: Path) -> None:
    wrong = wrong_ways(secure, *endpoint, tmp_path)
    answers = ask_all({way: configured(secure, name, security) for way, (name, security, _) in wrong.items()}, 4)
    assert {way: cure for way, (_, _, cure) in wrong.items() if cure not in answers[way]} == {}, answers


def test_a_client_that_was_refused_comes_back_with_what_the_file_holds_now(secure: Lab, tmp_path: Path) -> None:
    secret, folder = tmp_path / "password", secure.cluster("sasl-ssl").folder
    secret.write_text("wrong")
    user = {"mechanism": "SCRAM-SHA-256", "username": "ann", "password": f"${{file:{secret}}}"}
    cluster = configured(secure, "sasl-ssl", {"ca": f"{folder}/ca.pem", **user})

    def settings() -> dict[str, str | bool]:
        return resolved(librdkafka_admin("a", cluster))

    live = Live("a", settings(), timeout_seconds=4, renew=settings)
    with pytest.raises(AccessRefused):
        live.broker_count()
    secret.write_text(PASSWORD)
    live.timeout_seconds = 20
    assert live.broker_count() == 1
    assert PASSWORD not in repr(live)
    assert "wrong" not in repr(live)


# --- certificates that are wrong on the brokers' side ---


def own_pem(cluster: LabCluster) -> dict[str, str]:
    folder = cluster.folder
    return {"ca": f"{folder}/ca.pem", "certificate": f"{folder}/client.crt", "key": f"{folder}/client.key"}


def test_a_handshake_shows_chain_and_authority(secure: Lab, tmp_path: Path) -> None:
    mutual = secure.cluster("mutual")
    found = tls.look("127.0.0.1", mutual.ports[0].client)
    assert [each.subject for each in found.chain] == ["CN=broker", "CN=Mirrorlake lab CA"]
    assert found.chain[0].hosts == ("localhost", "127.0.0.1")
    assert 800 < found.chain[0].days_left(tls.utc_now()) <= 825
    saved = tls.save_authority(found, tmp_path / "ca.pem")
    assert (tmp_path / "ca.pem").read_text() == mutual.folder.joinpath("ca.pem").read_text() == saved.pem
    for security, cure in ((own_pem(mutual), ""), ({"ca": f"{tmp_path}/ca.pem"}, "security.certificate")):
        settings = resolved(librdkafka_admin("a", configured(secure, "mutual", security)))
        with nullcontext() if not cure else pytest.raises(AccessRefused) as refused:
            assert tls.verify("127.0.0.1", mutual.ports[0].client, settings).chain == found.chain
        assert not cure or cure in refused.value.next_step
    with pytest.raises(AccessRefused, match="does not speak TLS"):
        tls.look("127.0.0.1", mutual.ports[0].internal)


@contextmanager
def wearing(cluster: LabCluster, worn: certs.Identity) -> Iterator[None]:
    """The cluster with another certificate, as a broker takes one without a restart; then with its own again."""
    path = cluster.folder / "worn.pem"
    path.write_bytes(worn.pem)
    wear(cluster, path)
    try:
        yield
    finally:
        wear(cluster, cluster.folder / "broker.pem")


def wear(cluster: LabCluster, path: Path) -> None:
    operation = AlterConfigOpType.SET
    entry = ConfigEntry("listener.name.client.ssl.keystore.location", str(path), incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[entry])
    admin = cluster.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)
    text = path.read_text()
    own = text[text.index("-----BEGIN CERTIFICATE") :]
    wait_until(lambda: own.startswith(tls.look("127.0.0.1", cluster.ports[0].client).chain[0].pem.strip()), "it")


def test_expired_and_misnamed_certificates_are_refused_and_told_apart(
    secure: Lab, tmp_path: Path, probe: Callable[..., dict[str, str]]
) -> None:
    """By librdkafka, by Java's client and by our own look; allow_insecure lets both clients pass the name."""

    def ask_java(cluster: Cluster) -> str:
        return probe({"it": java_properties(cluster, tmp_path / "secrets.properties")})["it"]

    mutual = secure.cluster("mutual")
    ca = certs.authority("a new CA")
    (tmp_path / "ca.pem").write_bytes(ca.certificate_pem)
    security = {**own_pem(mutual), "ca": f"{tmp_path}/ca.pem"}
    cluster = configured(secure, "mutual", security)
    elsewhere = certs.issue(ca, "broker", hosts=["elsewhere.example"])
    for worn, cure, java_says in (
        (certs.issue(ca, "broker", valid_days=-1), "has expired", "failed CertificateExpiredException"),
        (elsewhere, "does not have the host name 127.0.0.1", "No subject alternative names matching IP address"),
    ):
        with wearing(mutual, worn):
            assert "`mirrorlake doctor` tells" in ask(cluster, 4)
            assert java_says in ask_java(cluster)
            with pytest.raises(AccessRefused) as refused:
                tls.verify("127.0.0.1", mutual.ports[0].client, resolved(librdkafka_admin("a", cluster)))
            assert cure in refused.value.next_step
    with pytest.raises(UsageFault, match="allow_insecure"):
        configured(secure, "mutual", {**security, "verify_hostname": False})
    with wearing(mutual, elsewhere):
        careless = configured(secure, "mutual", {**security, "verify_hostname": False}, allow_insecure=True)
        assert (ask(careless), ask_java(careless)) == ("ok", "ok 1")


# --- Java ---


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, dict[str, str]]], dict[str, str]]:
    """Kafka's Java client, of the version that Spark uses: name -> properties in, name -> answer out."""

    def run(asked: dict[str, dict[str, str]]) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("java")
        files = {}
        for number, (name, properties) in enumerate(asked.items()):
            path = folder / f"{number}{'.jaas' if 'bootstrap.servers' not in properties else ''}"
            path.write_text("".join(f"{key}={properties_escape(value)}\n" for key, value in properties.items()))
            files[str(path)] = name
        spark = Path(pyspark.__file__).parent / "jars" / "*"
        path = os.pathsep.join([jars.class_path(jars.resolve(jars.SPARK, print)), str(spark)])
        providers = f"{FILE_PROVIDER},{ENVIRONMENT_PROVIDER}"
        flags = ["-XX:TieredStopAtLevel=1", f"-Dorg.apache.kafka.automatic.config.providers={providers}"]
        source = str(Path(__file__).with_name("Probe.java"))
        done = subprocess.run([str(jars.java()), *flags, "-cp", path, source, *files], capture_output=True, text=True,
                              check=False, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
        return {files[file]: answer for file, answer in lines if file in files}

    return run


def java_properties(cluster: Cluster, secrets: Path, by_environment: bool = False) -> dict[str, str]:
    """What Spark's Kafka source would hand to its client: references, and a file that holds what they mean."""
    config = as_config({"bootstrap_servers": "a:1"}).model_copy(update={"clusters": {"a": cluster}})
    lines = secrets_file_lines(config)
    secrets.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    options = spark_kafka_options("a", cluster, secrets_file=secrets, by_environment=by_environment)
    assert not any(
        PASSWORD in value or "client-secret" in value or STORE_PASSWORD in value for value in options.values()
    )
    return {key.removeprefix("kafka."): value for key, value in options.items()}


def test_java_connects_in_every_way_and_is_refused_in_the_wrong_ones(
    secure: Lab, endpoint: tuple[str, Path], tmp_path: Path, probe: Callable[..., dict[str, str]]
) -> None:
    good = {way: configured(secure, *both) for way, both in ways(secure, *endpoint).items()}
    wrong = wrong_ways(secure, *endpoint, tmp_path)
    bad = {way: configured(secure, name, security) for way, (name, security, _) in wrong.items()}
    asked = {
        way: java_properties(cluster, tmp_path / f"secrets-{number}.properties")
        for number, (way, cluster) in enumerate({**good, **bad}.items())
    }
    # As executors on other machines look secrets up.
    plain = {**login("PLAIN", *endpoint), "password": "${env:SIMPLE}", "username": "eve"}
    many = configured(secure, "sasl-ssl", {"ca": f"{secure.cluster('sasl-ssl').folder}/ca.pem", **plain})
    good["by the environment"] = many
    asked["by the environment"] = java_properties(many, tmp_path / "none", by_environment=True)
    with pytest.raises(UsageFault, match="a quote or a backslash"):
        java_properties(good["SASL_PLAINTEXT, PLAIN"], tmp_path / "none", by_environment=True)
    answers = probe(asked)
    assert {way: answers[way] for way in good} == dict.fromkeys(good, "ok 1")
    assert {way for way in bad if not answers[way].startswith("failed")} == set()


def test_kafkas_own_parser_reads_back_what_was_escaped(
    probe: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quote in a password injects nothing: one module, two options, each as it was."""
    from mirrorlake.clusters import jaas, jaas_escape

    awkward = [
        "plain",
        'a"b',
        "a\\",
        '\\"',
        '"; evil.Module required x="y',
        "é ü 漢",
        "a=b;c",
        "'",
        "//",
        "/* x */",
        "${x}",
    ]
    asked, expected = {}, {}
    for number, text in enumerate(awkward):
        monkeypatch.setenv("PASSWORD", text)
        security = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "me", "password": "${env:PASSWORD}"}
        cluster = as_config({"bootstrap_servers": "a:1", "security": security}).clusters["a"]
        login = jaas(cluster.security, {"password": jaas_escape(text)})
        asked[str(number)] = {"sasl.jaas.config": login}
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        expected[str(number)] = f"{module} password={text.encode().hex()} username={b'me'.hex()};"
    assert probe(asked) == expected
