"""How to connect: one cluster's address, TLS and login, in our words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mirrorlake.config import Key
from mirrorlake.errors import UsageFault
from mirrorlake.mm2.draft import Setting
from mirrorlake.mm2.jaas import CALLBACKS, PASSWORD_OPTIONS, USER_OPTIONS, Login, parse_jaas
from mirrorlake.mm2.pairs import PairReader
from mirrorlake.mm2.references import whole_file
from mirrorlake.mm2keys import Fate
from mirrorlake.secrets import is_literal, resolve
from mirrorlake.stores import StoreType, store_type


class Connection:
    """One cluster: where it is, how to connect, who we are."""

    def __init__(self, reader: PairReader, alias: str) -> None:
        self.reader = reader
        self.draft = reader.draft
        self.alias = alias
        self.here: Key = ("clusters", alias)
        self.security: Key = (*self.here, "security")

    def write(self) -> None:
        servers = self._servers()
        protocol = self._protocol(servers)
        if protocol.endswith("SSL"):
            self._trust()
            self._identity()
            self._host_names()
        else:
            self._idle("ssl.", "is not reached by TLS")
        if protocol.startswith("SASL_"):
            self._login()
        else:
            self._idle("sasl.", "asks for no user: security.protocol says so")
        self._kind(servers)

    def _idle(self, family: str, why: str) -> None:
        for _, setting in self.reader.settings.below(f"{self.alias}.{family}"):
            self.reader.say(setting, Fate.NOT_NEEDED, f"{self.alias} {why}")

    def get(self, key: str) -> Setting | None:
        """The setting of this cluster: its own, that of one of its clients, or the one for all clusters."""
        forms = [f"{self.alias}.{key}", *(f"{self.alias}.{role}.{key}" for role in ("consumer", "producer", "admin"))]
        for pair in self.reader.pairs:
            side = "source" if pair.source == self.alias else "target" if pair.target == self.alias else ""
            roles = ("cluster", "consumer", "producer", "admin") if side else ()
            forms += [f"{pair.prefix}{side}.{role}.{key}" for role in roles]
            forms += [f"{pair.prefix}producer.override.{key}"] if side == "target" else []
        found = [form for form in forms if form in self.reader.settings.by_key]
        self._tell_conflicts(key, found)
        return self.reader.settings.first(*found, key)

    def _tell_conflicts(self, key: str, found: list[str]) -> None:
        first = self.reader.settings.first(*found)
        for form in found[1:]:
            other = self.reader.settings.by_key[form]
            if first and other.value == first.value:
                self.reader.say(other, Fate.NOT_NEEDED, f"{first.name} says the same")
            elif first:
                text = f"a cluster has one way to connect, and {first.name} says it; give the other one an alias"
                self.reader.say(other, Fate.UNSUPPORTED, text)

    def _put(self, name: str, value: Any, *origins: Setting) -> None:
        self.draft.put((*self.security, name), value, *origins)

    def plain(self, setting: Setting | None) -> str:
        return self.reader.plain(setting).strip() if setting else ""

    def _servers(self) -> Setting | None:
        servers = self.get("bootstrap.servers")
        if servers is None:
            clusters = self.reader.settings.by_key["clusters"]
            self.draft.fault(clusters, f"{self.alias}.bootstrap.servers is missing", self.here)
            return None
        value = self.plain(servers)
        self.draft.put((*self.here, "bootstrap_servers"), value, servers)
        if not value:
            self.draft.broken.add((*self.here, "bootstrap_servers"))
            self.reader.fault_once(servers, "is empty")
        return servers

    def _protocol(self, servers: Setting | None) -> str:
        setting = self.get("security.protocol")
        protocol = self.plain(setting).upper() if setting else "PLAINTEXT"
        if setting:
            self._put("protocol", protocol, setting)
        told = setting or servers
        if told and protocol == "PLAINTEXT":
            self.draft.unsafe(told, f"{self.alias} is reached in plain text, so anyone on the way can read and change")
        if setting and protocol == "SASL_PLAINTEXT":
            self.draft.put((*self.here, "allow_insecure"), True, setting)
            self.draft.unsafe(setting, f"the password for {self.alias} and all records go unencrypted")
        return protocol

    # --- TLS

    def _trust(self) -> None:
        store, inline = self.get("ssl.truststore.location"), self.get("ssl.truststore.certificates")
        if inline:
            self._file_of(inline, "ca", "ssl.truststore.type=PEM and ssl.truststore.location")
        elif store:
            pem = self._is_pem("ssl.truststore", store)
            self._put("ca", self.plain(store), *self._with_type("ssl.truststore", store))
            if not pem and (password := self.get("ssl.truststore.password")):
                self._password("ca_password", password, self.reader.secret(password))

    def _identity(self) -> None:
        store = self.get("ssl.keystore.location")
        key, chain = self.get("ssl.keystore.key"), self.get("ssl.keystore.certificate.chain")
        if key and chain:
            self._file_of(chain, "certificate", "a PEM file and ${dir:…} or ${file:…}")
            self._file_of(key, "key", "a PEM file and ${dir:…} or ${file:…}")
        elif store:
            self._keystore(store)
        else:
            return
        if password := self.get("ssl.key.password"):
            self._password("key_password", password, self.reader.secret(password))

    def _keystore(self, store: Setting) -> None:
        """PEM holds key and certificate in one file; a Java store is opened by the process that connects."""
        pem = self._is_pem("ssl.keystore", store)
        for name in ("certificate", "key") if pem else ("keystore",):
            self._put(name, self.plain(store), *self._with_type("ssl.keystore", store))
        if not pem and (password := self.get("ssl.keystore.password")):
            self._password("keystore_password", password, self.reader.secret(password))

    def _is_pem(self, family: str, store: Setting) -> bool:
        """The file's content decides as it does later; what the file says matters where it is not there yet."""
        path, kind = self.plain(store), self.plain(self.get(f"{family}.type")).upper()
        if Path(path).is_file():
            return store_type(path) is StoreType.PEM
        return kind == "PEM"

    def _with_type(self, family: str, store: Setting) -> tuple[Setting, ...]:
        kind = self.get(f"{family}.type")
        return (store, kind) if kind else (store,)

    def _file_of(self, setting: Setting, name: str, advice: str) -> None:
        path = whole_file(self.reader.secret(setting))
        if path:
            self._put(name, path, setting)
        else:
            self.reader.fault_once(setting, f"is written out here: put it into a file and use {advice}")

    def _host_names(self) -> None:
        setting = self.get("ssl.endpoint.identification.algorithm")
        if setting and self.plain(setting).lower() in ("", "none"):
            self._put("verify_hostname", False, setting)
            self.draft.put((*self.here, "allow_insecure"), True, setting)
            self.draft.unsafe(setting, f"any host with a trusted certificate can pretend to be {self.alias}")
        elif setting:
            self._put("verify_hostname", True, setting)

    # --- SASL

    def _login(self) -> None:
        mechanism, jaas = self.get("sasl.mechanism"), self.get("sasl.jaas.config")
        if mechanism:
            self._mechanism(mechanism)
        if jaas:
            self._jaas(jaas)
        self._oauth()
        for key in ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class", "sasl.login.class"):
            handler = self.get(key)
            if handler and self.plain(handler) and self.plain(handler) not in CALLBACKS:
                self.reader.fault_once(handler, "a class of your own cannot run here: use PLAIN, SCRAM or OAUTHBEARER")

    def _mechanism(self, setting: Setting) -> None:
        mechanism = self.plain(setting).upper()
        if mechanism in ("GSSAPI", "AWS_MSK_IAM"):
            text = f"{mechanism} is not supported: use SCRAM, OAUTHBEARER or mutual TLS"
            self.reader.fault_once(setting, text, self.security)
        self._put("mechanism", mechanism, setting)

    def _jaas(self, setting: Setting) -> None:
        text = self.reader.secret(setting)
        looked_up = re.fullmatch(r"\s*\$\{[^}]*\}\s*", text) is not None
        try:
            login = parse_jaas(resolve(text) if looked_up else text)
        except (ValueError, UsageFault) as bad:
            what = bad.what if isinstance(bad, UsageFault) else str(bad)
            self.reader.fault_once(setting, what, self.security)
            return
        if looked_up:
            self.draft.looked_up.add(self.alias)
        self._take(login, setting)

    def _take(self, login: Login, setting: Setting) -> None:
        user, password = login.first(*USER_OPTIONS), login.first(*PASSWORD_OPTIONS)
        if user:
            self._put("username", user, setting)
        if password:
            self._password("password", setting, password)
        for name, options in (("token_endpoint", ("oauth.token.endpoint.uri",)), ("scope", ("scope", "oauth.scope"))):
            if (value := login.first(*options)) and "oauthbearer" in login.module:
                self._put(name, value, setting)

    def _oauth(self) -> None:
        stem = "sasl.oauthbearer."
        for key, name in (("token.endpoint.url", "token_endpoint"), ("scope", "scope")):
            if setting := self.get(stem + key):
                self._put(name, self.plain(setting), setting)
        if user := self.get(stem + "client.credentials.client.id"):
            self._put("username", self.reader.secret(user), user)
        if secret := self.get(stem + "client.credentials.client.secret"):
            self._password("password", secret, self.reader.secret(secret))

    def _password(self, name: str, setting: Setting, text: str) -> None:
        self._put(name, text, setting)
        if is_literal(text):
            self.draft.put((*self.here, "allow_literal_secrets"), True, setting)
            advice = "write ${env:NAME} or ${file:/path:KEY} instead"
            self.draft.unsafe(setting, f"a password of {self.alias} is written out in a file; {advice}")

    def _kind(self, servers: Setting | None) -> None:
        """Managed services are known by their host names; each has limits that the kind knows."""
        cluster = self.draft.raw.get("clusters", {}).get(self.alias, {})
        security = cluster.get("security", {})
        hosts = [server.rpartition(":")[0].strip() for server in str(cluster.get("bootstrap_servers", "")).split(",")]
        user = (security.get("protocol"), security.get("mechanism"), security.get("username"))
        for kind, (domain, name) in SERVICES.items():
            if servers and user == ("SASL_SSL", "PLAIN", name) and all(host.endswith(domain) for host in hosts):
                self.draft.put((*self.here, "kind"), kind, servers)


SERVICES = {
    "event_hubs": (".servicebus.windows.net", "$ConnectionString"),
    "event_streams": (".eventstreams.cloud.ibm.com", "token"),
}
