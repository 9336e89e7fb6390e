"""A Strimzi `KafkaMirrorMaker2` resource (v1alpha1 to v1) as the settings that the package mm2 understands.

`spec.clusters[].config.x` becomes `alias.x`, `spec.mirrors[].sourceConnector.config.x` becomes `A->B.x`, and so on;
v1's `target` and `mirrors[].source` are clusters too. Secrets are not in the resource: they are looked for in a folder
of mounted secrets, `<folder>/<secret>/<key>`, and stay references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mirrorlake.clusters import jaas_escape
from mirrorlake.config import Document, Key, dotted, line_of
from mirrorlake.errors import Fault, UsageFault
from mirrorlake.mm2 import DEFAULT_SECRETS_DIR, SECURITY_PACKAGE, Draft, Note, Setting, Translator
from mirrorlake.mm2keys import Fate

KIND = "KafkaMirrorMaker2"
POD = "it shapes Strimzi's pods"
SPEC = {
    "clusters": "", "connectCluster": "", "target": "", "mirrors": "", "version": "no Kafka Connect is started",
    "replicas": POD, "image": POD, "resources": POD, "livenessProbe": POD, "readinessProbe": POD, "jvmOptions": POD,
    "jmxOptions": POD, "logging": POD, "clientRackInitImage": POD, "rack": POD, "template": POD,
    "metrics": "lag and throughput are in tables", "metricsConfig": "lag and throughput are in tables",
    "tracing": "lag and throughput are in tables", "affinity": POD, "tolerations": POD,
    "externalConfiguration": "secrets are read from the folder of mounted secrets",
}  # fmt: skip
STATE_TOPICS = "the ledger knows every position; no internal topic is made"
CLUSTER = {
    "alias": "", "bootstrapServers": "", "tls": "", "authentication": "", "config": "",
    "groupId": STATE_TOPICS, "configStorageTopic": STATE_TOPICS, "offsetStorageTopic": STATE_TOPICS,
    "statusStorageTopic": STATE_TOPICS,
}  # fmt: skip
PATTERNS = {
    "topicsPattern": "topics", "topicsWhitelistPattern": "topics", "topicsExcludePattern": "topics.exclude",
    "topicsBlacklistPattern": "topics.blacklist", "groupsPattern": "groups", "groupsWhitelistPattern": "groups",
    "groupsExcludePattern": "groups.exclude", "groupsBlacklistPattern": "groups.blacklist",
}  # fmt: skip
CONNECTORS = ("sourceConnector", "checkpointConnector", "heartbeatConnector")
CONNECTOR = {
    "config": "", "tasksMax": "Spark spreads the work over its cores",
    "autoRestart": "the runner tries again by itself", "pause": "", "state": "",
    "version": "no Kafka Connect is started",
    "listOffsets": "positions are in ops.ledger", "alterOffsets": "positions are in ops.ledger",
}  # fmt: skip
# Strimzi drops these from `config`, save the exceptions.
FORBIDDEN = re.compile(
    r"(?!ssl\.(endpoint\.identification\.algorithm|cipher\.suites|protocol|enabled\.protocols)$)"
    r"(ssl\.|sasl\.|security\.|listeners|plugin\.path|rest\.|bootstrap\.servers|(consumer|producer)\.interceptor\.classes)"
)
MODULES = {
    "plain": (f"{SECURITY_PACKAGE}.plain.PlainLoginModule", "PLAIN"),
    "scram-sha-256": (f"{SECURITY_PACKAGE}.scram.ScramLoginModule", "SCRAM-SHA-256"),
    "scram-sha-512": (f"{SECURITY_PACKAGE}.scram.ScramLoginModule", "SCRAM-SHA-512"),
    "oauth": (f"{SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginModule", "OAUTHBEARER"),
}


def read(text: str, where: str, secrets_dir: str = "") -> Draft:
    """The resource, as far as it can be understood; `faults` say what cannot."""
    document = Document(_resource(text))
    if document.faults or not isinstance(document.value, dict):
        faults = document.faults or [(1, (), f"a {KIND} is a mapping")]
        return Draft(where, faults=[Fault(f"{where}:{line}", dotted(key), what) for line, key, what in faults])
    return Resource(document, where, secrets_dir).translate()


def _resource(text: str) -> str:
    """Of several documents in one file the first of our kind, on the lines on which it stands."""
    before = ""
    for chunk in re.split(r"^(?=---)", text, flags=re.MULTILINE):
        if re.search(rf"^[\s{{\"',-]*kind[\"']?\s*:\s*[\"']?{KIND}\b", chunk, re.MULTILINE):
            return "\n" * before.count("\n") + re.sub(r"^(---|\.\.\.)[^\n]*", "", chunk, flags=re.MULTILINE)
        before += chunk
    return text


class Resource:
    """One resource on its way to settings."""

    def __init__(self, document: Document, where: str, secrets_dir: str) -> None:
        self.lines = document.lines
        self.where = where
        self.settings: dict[str, Setting] = {}
        self.notes: list[Note] = []
        self.faults: list[Fault] = []
        self.below: Key = ()
        self.value = self._our_item(document.value)
        annotations = self._mapping(self._mapping(self.value, "metadata"), "annotations", ("metadata",))
        self.secrets_dir = secrets_dir or str(annotations.get("mirrorlake.secrets-dir") or "") or DEFAULT_SECRETS_DIR
        self.folder_named = self.secrets_dir != DEFAULT_SECRETS_DIR
        for name, value in annotations.items():
            if name.startswith("mirrorlake."):
                self.add(name, value, ("metadata", "annotations", name))

    def _our_item(self, value: dict[str, Any]) -> dict[str, Any]:
        """`kubectl get -o yaml` may give a list of one."""
        items = value.get("items")
        if value.get("kind") == KIND or not isinstance(items, list):
            return value
        for index, item in enumerate(items):
            if isinstance(item, dict) and item.get("kind") == KIND:
                self.below = ("items", index)
                return item
        return value

    def translate(self) -> Draft:
        self._version()
        spec = self._mapping(self.value, "spec")
        self._structure(spec, ("spec",), SPEC)
        aliases = self._clusters(spec)
        self._connect_cluster(spec, aliases)
        mirrors = self._list(spec, "mirrors", ("spec",))
        for index, mirror in enumerate(mirrors):
            self._mirror(mirror, ("spec", "mirrors", index), spec, aliases)
        if not mirrors:
            self.fault(("spec", "mirrors"), "is missing: nothing would be mirrored")
        draft = Translator(list(self.settings.values()), self.where, self.secrets_dir)()
        # A fault in the resource explains what the settings made of it lack.
        draft.faults = self.faults or draft.faults
        draft.notes = sorted({*draft.notes, *self.notes}, key=lambda note: (note.line, note.key, note.text))
        return draft

    # --- words

    def line(self, key: Key) -> int:
        return line_of((*self.below, *key), self.lines)

    def fault(self, key: Key, what: str) -> None:
        self.faults.append(Fault(f"{self.where}:{self.line(key)}", dotted(key), what))

    def note(self, key: Key, fate: Fate, text: str, unsafe: bool = False) -> None:
        self.notes.append(Note(self.line(key), dotted(key), fate, text, unsafe))

    def add(self, name: str, value: Any, key: Key) -> None:
        """A setting under MM2's name, shown under the resource's."""
        setting = Setting(name, text_of(value), self.line(key), dotted(key))
        before = self.settings.setdefault(name, setting)
        if before is not setting:
            same = "says the same" if before.value == setting.value else "comes before it"
            self.note(key, Fate.NOT_NEEDED, f"{before.shown} {same}", before.value != setting.value)

    def _mapping(self, value: Mapping[str, Any], name: str, key: Key = ()) -> dict[str, Any]:
        found = value.get(name)
        if found is not None and not isinstance(found, dict):
            self.fault((*key, name), "must be a mapping")
        return found if isinstance(found, dict) else {}

    def _list(self, value: Mapping[str, Any], name: str, key: Key) -> list[dict[str, Any]]:
        found = value.get(name)
        if found is not None and not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
            self.fault((*key, name), "must be a list of mappings")
            return []
        return found or []

    def _text(self, value: Mapping[str, Any], name: str, key: Key) -> str:
        found = value.get(name)
        if found is None or isinstance(found, dict | list) or not text_of(found):
            self.fault((*key, name), "is missing" if found is None else "must be text")
            return ""
        return text_of(found)

    def _structure(self, value: Mapping[str, Any], key: Key, table: Mapping[str, str]) -> None:
        """A note on each key that shapes nothing here, and on each that nobody knows."""
        for name in value:
            if name not in table:
                self.note((*key, name), Fate.UNKNOWN, "Strimzi does not know it either; it has no effect")
            elif table[name]:
                self.note((*key, name), Fate.NOT_NEEDED, table[name])

    def _version(self) -> None:
        version = str(self.value.get("apiVersion", ""))
        if not re.fullmatch(r"kafka\.strimzi\.io/v1(alpha1|beta1|beta2)?", version):
            self.fault(("apiVersion",), "must be kafka.strimzi.io/ with v1alpha1, v1beta1, v1beta2 or v1")

    # --- clusters

    def _clusters(self, spec: Mapping[str, Any]) -> list[str]:
        places: list[tuple[dict[str, Any], Key]]
        places = [(each, ("spec", "clusters", at)) for at, each in enumerate(self._list(spec, "clusters", ("spec",)))]
        places += [(self._mapping(spec, "target", ("spec",)), ("spec", "target"))] if spec.get("target") else []
        for at, mirror in enumerate(self._list(spec, "mirrors", ("spec",))):
            source = self._mapping(mirror, "source", ("spec", "mirrors", at))
            places += [(source, ("spec", "mirrors", at, "source"))] if source else []
        aliases: dict[str, tuple[Mapping[str, Any], Key]] = {}
        for cluster, key in places:
            alias = self._text(cluster, "alias", key)
            if alias in aliases and aliases[alias][0] != cluster:
                self.fault((*key, "alias"), f"{alias} is described twice, first on line {self.line(aliases[alias][1])}")
            elif alias and alias not in aliases:
                aliases[alias] = (cluster, key)
                self._cluster(alias, cluster, key)
        if not places:
            self.fault(("spec",), "clusters are missing: give clusters, or target and mirrors[].source")
        first: Key = ("spec", "clusters") if "clusters" in spec else ("spec",)
        self.add("clusters", ",".join(aliases), first)
        return list(aliases)

    def _cluster(self, alias: str, cluster: Mapping[str, Any], key: Key) -> None:
        self._structure(cluster, key, CLUSTER)
        self.add(f"{alias}.bootstrap.servers", self._text(cluster, "bootstrapServers", key), (*key, "bootstrapServers"))
        sasl = self._authentication(alias, cluster, key)
        if cluster.get("tls") is not None:
            self._tls(alias, self._mapping(cluster, "tls", key), (*key, "tls"))
        protocol = ("SASL_" if sasl else "") + ("SSL" if cluster.get("tls") is not None else "PLAINTEXT")
        if protocol != "PLAINTEXT":
            told = "tls" if cluster.get("tls") is not None else "authentication"
            self.add(f"{alias}.security.protocol", protocol, (*key, told))
        for name, value in self._mapping(cluster, "config", key).items():
            place = (*key, "config", name)
            if FORBIDDEN.match(name):
                self.note(place, Fate.UNKNOWN, "Strimzi drops it here; say it with tls and authentication")
            else:
                self.add(f"{alias}.{name}", value, place)

    def _mounted(self, secret: str, name: str, key: Key) -> str:
        if not self.folder_named:
            self.folder_named = True  # once is enough
            text = f"{self.secrets_dir} is assumed to hold the mounted secrets; MIRRORLAKE_SECRETS_DIR names another"
            self.note(key, Fate.TAKEN, f"a file below it: {text}", True)
        return f"${{file:{self.secrets_dir}/{secret}/{name}}}"

    def _tls(self, alias: str, tls: Mapping[str, Any], key: Key) -> None:
        trusted = self._list(tls, "trustedCertificates", key)
        here = (*key, "trustedCertificates")
        if len(trusted) == 1 and "certificate" in trusted[0]:
            secret = self._text(trusted[0], "secretName", (*here, 0))
            name = self._text(trusted[0], "certificate", (*here, 0))
            self.add(f"{alias}.ssl.truststore.certificates", self._mounted(secret, name, here), here)
        elif trusted:
            folders = [f"{self.secrets_dir}/{each.get('secretName')}" for each in trusted]
            files = [
                f"{folder}/{each.get('certificate') or each.get('pattern') or '*.crt'}"
                for folder, each in zip(folders, trusted, strict=True)
            ]
            made = f"{self.secrets_dir}/{alias}-ca.pem"
            self.note(here, Fate.UNSUPPORTED, f"one PEM file is read; make it once: cat {' '.join(files)} > {made}")
            self.add(f"{alias}.ssl.truststore.certificates", f"${{file:{made}}}", here)

    def _authentication(self, alias: str, cluster: Mapping[str, Any], key: Key) -> bool:
        """Who we are; whether that is said by SASL."""
        found = self._mapping(cluster, "authentication", key)
        here = (*key, "authentication")
        kind = self._text(found, "type", here) if found else ""
        if kind == "tls":
            self._certificate(alias, found, here)
        elif kind == "custom":
            for name, value in self._mapping(found, "config", here).items():
                self.add(f"{alias}.{name}", value, (*here, "config", name))
            return found.get("sasl") is True
        elif kind in MODULES:
            self._login(alias, kind, found, here)
        elif kind:
            self.fault((*here, "type"), "is not supported: use plain, scram-sha-256, scram-sha-512, tls or oauth")
        return kind in MODULES

    def _certificate(self, alias: str, found: Mapping[str, Any], key: Key) -> None:
        pair = self._mapping(found, "certificateAndKey", key)
        here = (*key, "certificateAndKey")
        secret = self._text(pair, "secretName", here)
        for name, setting in (("certificate", "ssl.keystore.certificate.chain"), ("key", "ssl.keystore.key")):
            file = self._mounted(secret, self._text(pair, name, here), here)
            self.add(f"{alias}.{setting}", file, (*here, name) if name in pair else here)

    def _login(self, alias: str, kind: str, found: Mapping[str, Any], key: Key) -> None:
        module, mechanism = MODULES[kind]
        self.add(f"{alias}.sasl.mechanism", mechanism, (*key, "type"))
        options = self._oauth(alias, found, key) if kind == "oauth" else self._user(found, key)
        try:
            written = " ".join(f'{name}="{jaas_escape(value)}"' for name, value in options.items() if value)
        except UsageFault as bad:
            self.fault(key, bad.what)
            return
        self.add(f"{alias}.sasl.jaas.config", f"{module} required {written};", key)

    def _user(self, found: Mapping[str, Any], key: Key) -> dict[str, str]:
        secret = self._mapping(found, "passwordSecret", key)
        here = (*key, "passwordSecret")
        name, file = self._text(secret, "secretName", here), self._text(secret, "password", here)
        return {"username": self._text(found, "username", key), "password": self._mounted(name, file, here)}

    def _oauth(self, alias: str, found: Mapping[str, Any], key: Key) -> dict[str, str]:
        for name in sorted(set(found) - {"type", "clientId", "clientSecret", "tokenEndpointUri", "scope"}):
            self.note((*key, name), Fate.UNSUPPORTED, "only a client id with its secret is; leave it out")
        endpoint = self._text(found, "tokenEndpointUri", key)
        self.add(f"{alias}.sasl.oauthbearer.token.endpoint.url", endpoint, (*key, "tokenEndpointUri"))
        secret = self._mapping(found, "clientSecret", key)
        here = (*key, "clientSecret")
        name, file = self._text(secret, "secretName", here), self._text(secret, "key", here)
        return {
            "clientId": self._text(found, "clientId", key),
            "clientSecret": self._mounted(name, file, here),
            "scope": text_of(found.get("scope")),
        }

    def _connect_cluster(self, spec: Mapping[str, Any], aliases: list[str]) -> None:
        chosen = spec.get("connectCluster")
        here: Key = ("spec", "connectCluster")
        if chosen is None:
            return
        if chosen not in aliases:
            self.fault(here, f"{text_of(chosen)} is not among the aliases of spec.clusters")
            return
        targets = {text_of(mirror.get("targetCluster")) for mirror in self._list(spec, "mirrors", ("spec",))}
        others = sorted(targets - {str(chosen), ""})
        if others:
            text = f"mirrors write to {', '.join(others)} too, which newer Strimzi refuses; here each target is served"
            self.note(here, Fate.NOT_NEEDED, text, True)
        else:
            self.note(here, Fate.NOT_NEEDED, "there are no Connect workers; it is the mirrors' target, as it must be")

    # --- mirrors

    def _mirror(self, mirror: Mapping[str, Any], key: Key, spec: Mapping[str, Any], aliases: list[str]) -> None:
        known = {"sourceCluster": "", "targetCluster": "", "source": "", **dict.fromkeys([*PATTERNS, *CONNECTORS], "")}
        self._structure(mirror, key, known)
        pair = self._pair(mirror, key, spec, aliases)
        if not pair:
            return
        if f"{pair}.enabled" in self.settings:
            self.fault(key, f"{pair} is mirrored twice")
            return
        for name, setting in PATTERNS.items():
            if name in mirror:
                self.add(f"{pair}.{setting}", mirror[name], (*key, name))
        runs = self._runs(mirror, key)
        self.add(f"{pair}.enabled", runs, key)
        for name in CONNECTORS:
            self._connector(pair, self._mapping(mirror, name, key), (*key, name))

    def _pair(self, mirror: Mapping[str, Any], key: Key, spec: Mapping[str, Any], aliases: list[str]) -> str:
        source = mirror.get("sourceCluster") or self._mapping(mirror, "source", key).get("alias")
        target = mirror.get("targetCluster") or self._mapping(spec, "target", ("spec",)).get("alias")
        ends = {"sourceCluster": source, "targetCluster": target}
        for name, alias in ends.items():
            if alias not in aliases:
                what = "is missing" if alias is None else f"{text_of(alias)} is not among the clusters"
                self.fault((*key, name), what)
        return f"{source}->{target}" if all(alias in aliases for alias in ends.values()) else ""

    def _runs(self, mirror: Mapping[str, Any], key: Key) -> bool:
        """Strimzi starts the connectors that are named, unless they are paused or stopped."""
        source = mirror.get("sourceConnector")
        here = (*key, "sourceConnector")
        if source is None and not any(name in mirror for name in PATTERNS) and any(c in mirror for c in CONNECTORS):
            self.note(key, Fate.NOT_NEEDED, "it has no sourceConnector, so that nothing is mirrored", True)
            return False
        if source is None:
            self.note(key, Fate.TAKEN, "a flow, though Strimzi wants a sourceConnector to mirror anything", True)
        settings = source if isinstance(source, dict) else {}
        halted = settings.get("pause") is True or settings.get("state") in ("paused", "stopped")
        if halted:
            self.note(here, Fate.NOT_NEEDED, "it is paused: the mirror is left out", True)
        return not halted

    def _connector(self, pair: str, connector: Mapping[str, Any], key: Key) -> None:
        self._structure(connector, key, CONNECTOR)
        for name, value in self._mapping(connector, "config", key).items():
            self.add(f"{pair}.{name}", value, (*key, "config", name))


def text_of(value: Any) -> str:
    """A YAML value as MM2 would read it from a properties file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(text_of(each) for each in value)
    return "" if isinstance(value, dict) else str(value)
