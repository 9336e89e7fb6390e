"""One cluster, two dialects: librdkafka (producers, range reads, admin) and Spark's Java client (ingest).

Settings hold references, not secrets. librdkafka's are resolved last, where the client is opened. Java's stay
references for good: Kafka's own FileConfigProvider looks them up in a file made of `secrets_file_lines`, so
that no value reaches a Spark plan, a log or the UI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mirrorlake.config import FROM_SECRET, SECRETS, Cluster, Config, Isolation, Security, refused
from mirrorlake.errors import UsageFault
from mirrorlake.secrets import Databricks, Secret, is_literal, resolve
from mirrorlake.services import CODECS, Limits, limits, open_secret, servers_of
from mirrorlake.stores import StoreType, authorities, identity, store_type

Settings = dict[str, str]
__all__ = ["CODECS", "Limits", "limits"]  # for those who think of them as properties of a cluster


def weaknesses(cluster: Cluster) -> Iterator[str]:
    """What is less safe than it could be, for reports."""
    security = cluster.security
    if security.protocol == "PLAINTEXT":
        yield "plain text: anyone on the way can read and change records"
    if security.protocol == "SASL_PLAINTEXT":
        yield "INSECURE: the password and all records go unencrypted"
    if security.tls and not security.verify_hostname:
        yield "INSECURE: any host with a trusted certificate can pretend to be this cluster"
    for name in SECRETS:
        secret = getattr(security, name)
        if secret and is_literal(secret.text):
            yield f"{name} is written out in the configuration"


# --- librdkafka ---------------------------------------------------------------------------------------------

# Event Hubs cuts connections that idle for 240 s, without a word.
KIND_COMMON: Mapping[str, Settings] = {
    "kafka": {},
    "event_streams": {"socket.keepalive.enable": "true"},
    "event_hubs": {
        "socket.keepalive.enable": "true",
        "metadata.max.age.ms": "180000",
        "connections.max.idle.ms": "180000",
    },
}
KIND_PRODUCER: Mapping[str, Settings] = {
    # The broker's own limit decides, not the client's default of 1 MB.
    "kafka": {"compression.type": "lz4", "message.max.bytes": "104857600"},
    "event_streams": {"compression.type": "lz4", "message.max.bytes": "1000000"},
    "event_hubs": {"compression.type": "none", "message.max.bytes": "1000000", "request.timeout.ms": "60000"},
}
PRODUCER_DEFAULTS: Settings = {
    "linger.ms": "20",
    "batch.size": "1000000",
    "batch.num.messages": "100000",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "131072",
}
# Promises rest on these: config.OURS says why to whoever tries to set them.
PRODUCER_FIXED: Settings = {
    "enable.idempotence": "true",
    "acks": "all",
    "enable.gapless.guarantee": "true",
    "message.timeout.ms": "0",
    "delivery.report.only.error": "true",
    "allow.auto.create.topics": "false",
}
# What lies in the queue when a range ends was fetched for nothing: large enough to keep busy, and no larger.
CONSUMER_DEFAULTS: Settings = {
    "queued.max.messages.kbytes": "4096",
    "max.partition.fetch.bytes": str(1 << 20),
    # Ranges are known to exist. A fetch that waits at a log's end would hold up the next range of the same broker.
    "fetch.wait.max.ms": "5",
    # A queue that was full is looked at again after a second by default, in which nothing is read.
    "fetch.queue.backoff.ms": "5",
    "check.crcs": "true",
}
CONSUMER_FIXED: Settings = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
}
ALIASES = {
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "sasl.mechanisms": "sasl.mechanism",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "message.send.max.retries": "retries",
}


def librdkafka_common(alias: str, cluster: Cluster) -> Settings:
    """What every client of this cluster needs."""
    who = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": f"mirrorlake-{alias}"}
    who |= {SERVICE: cluster.kind} if cluster.kind != "kafka" else {}
    return merged(KIND_COMMON[cluster.kind], who, checked(cluster.client), librdkafka_security(cluster.security))


def librdkafka_producer(alias: str, cluster: Cluster, overrides: Mapping[str, str] | None = None) -> Settings:
    """An idempotent producer that keeps order; `overrides` are the flow's, and come before the cluster's."""
    ours = merged(PRODUCER_DEFAULTS, KIND_PRODUCER[cluster.kind], librdkafka_common(alias, cluster))
    settings = merged(ours, checked(cluster.producer), checked(overrides or {}), PRODUCER_FIXED)
    if settings["compression.type"] not in (allowed := limits(cluster).compressions):
        raise UsageFault(f"Cluster {alias} ({cluster.kind}) takes only compression {' or '.join(allowed)}.")
    return settings


def librdkafka_consumer(
    alias: str, cluster: Cluster, isolation: Isolation = "read_committed", group: str = "mirrorlake"
) -> Settings:
    """A reader of assigned ranges, which commits nothing."""
    ours = merged(CONSUMER_DEFAULTS, librdkafka_common(alias, cluster), checked(cluster.consumer))
    return merged(ours, CONSUMER_FIXED, {"isolation.level": isolation, "group.id": group})


def librdkafka_admin(alias: str, cluster: Cluster) -> Settings:
    return librdkafka_common(alias, cluster)


def resolved(settings: Mapping[str, str], databricks: Databricks | None = None) -> dict[str, str | bool]:
    """The settings with their secrets: for the client's constructor, and for nobody else."""
    ready: dict[str, str | bool] = {**_opened({key: resolve(value, databricks) for key, value in settings.items()})}
    if "delivery.report.only.error" in ready:
        # The one setting that confluent-kafka takes for itself, and only as a bool.
        ready["delivery.report.only.error"] = True
    return ready


# Our own names, which never reach librdkafka: `_opened` puts what stores and secrets hold in their place.
SERVICE = "mirrorlake.service"
CA_PASSWORD, KEYSTORE, KEYSTORE_PASSWORD = "ssl.ca.password", "ssl.keystore.location", "ssl.keystore.password"


def _opened(settings: Settings) -> Settings:
    """Java's stores as the PEM text that librdkafka takes in their place."""
    opened = _served(settings)
    password = opened.pop(CA_PASSWORD, "")
    if "ssl.ca.location" in opened and store_type(opened["ssl.ca.location"]) is not StoreType.PEM:
        opened["ssl.ca.pem"] = authorities(opened.pop("ssl.ca.location"), password)
    if KEYSTORE in opened:
        store, password = opened.pop(KEYSTORE), opened.pop(KEYSTORE_PASSWORD, "")
        own = identity(store, password, opened.pop("ssl.key.password", ""))
        opened |= {"ssl.certificate.pem": own.certificates_pem, "ssl.key.pem": own.key_pem}
    return opened


def _served(settings: Settings) -> Settings:
    """A connection string or service credentials as servers and password."""
    service = settings.get(SERVICE, "")
    opened = {key: value for key, value in settings.items() if key != SERVICE}
    if service:
        held = open_secret(service, opened.get("sasl.password", ""))
        opened["sasl.password"] = held.password
        if opened["bootstrap.servers"] == FROM_SECRET:
            opened["bootstrap.servers"] = held.servers
    return opened


def librdkafka_security(security: Security) -> Settings:
    settings = {
        "security.protocol": security.protocol,
        "ssl.ca.location": security.ca,
        CA_PASSWORD: text_of(security.ca_password),
        KEYSTORE: security.keystore,
        KEYSTORE_PASSWORD: text_of(security.keystore_password),
        "ssl.certificate.location": security.certificate,
        "ssl.key.location": security.key,
        "ssl.key.password": text_of(security.key_password),
        "ssl.endpoint.identification.algorithm": "https" if security.verify_hostname else "none",
    }
    used = settings if security.tls else {"security.protocol": security.protocol}
    return present({**used, **_librdkafka_sasl(security)})


def _librdkafka_sasl(security: Security) -> dict[str, str | None]:
    if not security.sasl:
        return {}
    if security.mechanism != "OAUTHBEARER":
        user = {"sasl.username": security.username, "sasl.password": text_of(security.password)}
        return {"sasl.mechanism": security.mechanism, **user}
    return {
        "sasl.mechanism": security.mechanism,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": security.username,
        "sasl.oauthbearer.client.secret": text_of(security.password),
        "sasl.oauthbearer.token.endpoint.url": security.token_endpoint,
        "sasl.oauthbearer.scope": security.scope,
        "https.ca.location": security.token_ca,
    }


def merged(*layers: Mapping[str, str]) -> Settings:
    """Later layers win, under whichever of its names an option is given."""
    settings: Settings = {}
    for layer in layers:
        settings.update({ALIASES.get(key, key): value for key, value in layer.items()})
    return settings


def checked(options: Mapping[str, str]) -> Mapping[str, str]:
    """Options given by hand, whichever way they came."""
    if broken := [f"{key}: {why}" for key in options if (why := refused(key))]:
        raise UsageFault("Client options that may not be set: " + "; ".join(broken) + ".")
    return options


def present(settings: Mapping[str, str | None]) -> Settings:
    return {key: value for key, value in settings.items() if value is not None}


def text_of(secret: Secret | None) -> str | None:
    return secret.text if secret else None


# --- Spark's Java client ------------------------------------------------------------------------------------

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
ENVIRONMENT_PROVIDER = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
FILE_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
JAVA_KIND: Mapping[str, Settings] = {
    "kafka": {},
    "event_streams": {},
    "event_hubs": {
        "metadata.max.age.ms": "180000",
        "connections.max.idle.ms": "180000",
        "request.timeout.ms": "60000",
    },
}


def spark_kafka_options(
    alias: str,
    cluster: Cluster,
    shaded: bool = False,
    secrets_file: Path | None = None,
    by_environment: bool = False,
) -> Settings:
    """Options of Spark's Kafka source. `shaded` is Databricks, which moved Kafka's classes.

    Secrets are references to a file of ours; with `by_environment`, where executors are other machines and have no such
    file, to the environment that driver and executors share.
    """
    prefix = "kafkashaded." if shaded else ""
    if by_environment:
        references, provider = _environment_references(alias, cluster), _environment_provider(prefix)
    else:
        references = _file_references(alias, cluster.security, secrets_file)
        provider = _file_provider(secrets_file, prefix) if secrets_file else {}
    settings = {
        "bootstrap.servers": servers_of(alias, cluster),
        **JAVA_KIND[cluster.kind],
        **java_security(cluster.security, references, prefix),
        **(provider if references else {}),
    }
    return {f"kafka.{key}": value for key, value in settings.items()}


def java_security(security: Security, references: Mapping[str, str], prefix: str = "") -> Settings:
    """`references` holds, for each secret by its short name, what stands in its place."""
    settings: dict[str, str | None] = {"security.protocol": security.protocol}
    if security.tls:
        settings |= _java_tls(security, references)
    if security.sasl and security.mechanism:
        settings |= {
            "sasl.mechanism": security.mechanism,
            "sasl.jaas.config": jaas(security, references, prefix),
        }
    if security.mechanism == "OAUTHBEARER":
        settings["sasl.oauthbearer.token.endpoint.url"] = security.token_endpoint
        settings["sasl.login.callback.handler.class"] = prefix + OAUTH_HANDLER
    return present(settings)


def _java_tls(security: Security, references: Mapping[str, str]) -> dict[str, str | None]:
    return {
        "ssl.truststore.type": store_type(security.ca).value if security.ca else None,
        "ssl.truststore.location": security.ca,
        "ssl.truststore.password": references.get("ca_password"),
        "ssl.keystore.type": _keystore_type(security),
        # Key and certificate in one PEM file are a keystore to Java.
        "ssl.keystore.location": security.keystore or (None if "key" in references else security.key),
        "ssl.keystore.password": references.get("keystore_password"),
        "ssl.keystore.key": references.get("key"),
        "ssl.keystore.certificate.chain": references.get("certificate"),
        # Java asks for a key's password in any case; a keystore's key mostly has the keystore's.
        "ssl.key.password": references.get("key_password") or references.get("keystore_password"),
        "ssl.endpoint.identification.algorithm": "https" if security.verify_hostname else "",
    }


def _keystore_type(security: Security) -> str | None:
    if security.keystore:
        return store_type(security.keystore).value
    return "PEM" if security.key else None


def jaas(security: Security, references: Mapping[str, str], prefix: str = "") -> str:
    """One login module and its options. A reference stands for a value that is escaped already."""
    oauth = security.mechanism == "OAUTHBEARER"
    user, password = ("clientId", "clientSecret") if oauth else ("username", "password")
    options = {
        user: references.get("username") or jaas_escape(security.username or ""),
        password: references["password"],
        "scope": jaas_escape(security.scope) if oauth and security.scope else None,
        # Kafka's login for tokens takes the authorities of the endpoint from here, and from nowhere else.
        "ssl.truststore.type": "PEM" if oauth and security.token_ca else None,
        "ssl.truststore.location": jaas_escape(security.token_ca) if oauth and security.token_ca else None,
    }
    quoted = " ".join(f'{key}="{value}"' for key, value in present(options).items())
    return f"{prefix}{LOGIN_MODULES[security.mechanism or 'PLAIN']} required {quoted};"


def jaas_escape(text: str) -> str:
    """For use between double quotes: an unescaped quote could begin a second login module."""
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise UsageFault("A user name or password holds a control character, which JAAS cannot carry.")
    return text.replace("\\", "\\\\").replace('"', '\\"')


# --- the secrets file ---------------------------------------------------------------------------------------


def secrets_file_lines(config: Config, databricks: Databricks | None = None) -> Settings:
    """What the secrets file must hold: write each as `key=value`, readable by its owner alone.

    Kafka replaces references before it parses JAAS, so passwords are JAAS-escaped inside, then escaped as the
    .properties format asks.
    """
    return {
        f"{alias}.{name}": properties_escape(value)
        for alias, cluster in config.clusters.items()
        for name, value in _secret_values(cluster, databricks).items()
    }


def _secret_values(cluster: Cluster, databricks: Databricks | None) -> Settings:
    values: Settings = {}
    for name, text in _secret_texts(cluster.security).items():
        value = resolve(text, databricks)
        value = open_secret(cluster.kind, value).password if name == "password" else value
        values[name] = jaas_escape(value) if name in ("username", "password") else value
    return values


def _secret_texts(security: Security) -> Settings:
    """The secrets of a cluster by short name; the key pair is a file that Java wants as one text each."""
    files = {"key": security.key, "certificate": security.certificate}
    texts = {name: f"${{file:{path}}}" for name, path in files.items() if path}
    texts |= present({name: text_of(getattr(security, name)) for name in SECRETS})
    return texts | ({"username": security.username} if security.username and not is_literal(security.username) else {})


def _file_references(alias: str, security: Security, secrets_file: Path | None) -> Settings:
    names = list(_secret_texts(security))
    if names and secrets_file is None:
        raise UsageFault(f"Cluster {alias} has secrets ({', '.join(names)}), and no secrets file was given.")
    if names and set(str(secrets_file)) & set(":}"):
        raise UsageFault(f"The path {secrets_file} holds : or }}, which Kafka's references cannot carry.")
    return {name: f"${{file:{secrets_file}:{alias}.{name}}}" for name in names}


def _environment_references(alias: str, cluster: Cluster) -> Settings:
    """Kafka puts values in as they are, so one that JAAS would have escaped cannot go this way."""
    security, found = cluster.security, {}
    if security.key != security.certificate:
        raise UsageFault(
            f"Cluster {alias}: executors on other machines need key and certificate in one file.",
            "cat key.pem certificate.pem > both.pem, and name it as key and as certificate; or give a keystore",
        )
    for name, text in _secret_texts(security).items():
        if name in ("key", "certificate"):
            continue
        if not re.fullmatch(r"\$\{env:[^}]+\}", text):
            raise UsageFault(
                f"Cluster {alias}: executors on other machines can look up {name} in their environment only.",
                "write ${env:NAME}, and set NAME for the whole cluster",
            )
        value = resolve(text)
        if name in ("username", "password") and jaas_escape(value) != value:
            raise UsageFault(
                f"Cluster {alias}: {name} holds a quote or a backslash, which cannot go through the environment.",
                "choose one without, or run where driver and executors are one machine",
            )
        found[name] = text
    return found


def _environment_provider(prefix: str) -> Settings:
    return {"config.providers": "env", "config.providers.env.class": prefix + ENVIRONMENT_PROVIDER}


def _file_provider(secrets_file: Path, prefix: str) -> Settings:
    return {
        "config.providers": "file",
        "config.providers.file.class": prefix + FILE_PROVIDER,
        # Where the client knows this parameter, no other file can be read through us.
        "config.providers.file.param.allowed.paths": str(secrets_file),
    }


def properties_escape(value: str) -> str:
    """A value as java.util.Properties reads it back, in ASCII."""
    named = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    escaped = "".join(named.get(char) or (char if " " <= char <= "~" else _unicode(char)) for char in value)
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _unicode(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
