"""`sasl.jaas.config` taken apart: one login module of Kafka's own, and its options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SECURITY_PACKAGE = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    f"{SECURITY_PACKAGE}.plain.PlainLoginModule",
    f"{SECURITY_PACKAGE}.scram.ScramLoginModule",
    f"{SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
}
CALLBACKS = {
    f"{SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{SECURITY_PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
}
JAAS_TOKEN = re.compile(r"""\s+|//[^\n]*|/\*.*?\*/|"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s=;"']+)|([=;])""", re.S)
USER_OPTIONS = ("username", "clientId", "oauth.client.id")
PASSWORD_OPTIONS = ("password", "clientSecret", "oauth.client.secret")


@dataclass(frozen=True)
class Login:
    module: str
    options: Mapping[str, str] = field(repr=False)

    def first(self, *names: str) -> str | None:
        return next((self.options[name] for name in names if name in self.options), None)


def parse_jaas(text: str) -> Login:
    """One login module and its options. ValueError says what is wrong and repeats nothing."""
    words = list(_jaas_words(text))
    if ";" not in words:
        raise ValueError("does not end with ;")
    if words.index(";") != len(words) - 1:
        raise ValueError("names more than one login module: give one")
    if len(words) < 3 or words[1] not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError("must be: module required option=value …;")
    module = words[0].removeprefix("kafkashaded.")
    if module not in LOGIN_MODULES:
        raise ValueError("names a login module that is not supported: use PLAIN, SCRAM or OAUTHBEARER with Kafka's own")
    options = words[2:-1]
    if len(options) % 3 or any(word != "=" for word in options[1::3]):
        raise ValueError("has an option without a value")
    return Login(module, dict(zip(options[::3], options[2::3], strict=True)))


def _jaas_words(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = JAAS_TOKEN.match(text, at)
        if match is None:
            raise ValueError("has a quote that does not end")
        at = match.end()
        double, single, word, mark = match.groups()
        if double is not None or single is not None:
            yield re.sub(r"\\(.)", r"\1", double if double is not None else single, flags=re.S)
        elif word or mark:
            yield word or mark
