"""Kafka's references to files, directories and the environment, as ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mirrorlake.mm2.draft import Settings
from mirrorlake.mm2.topics import listed

PROVIDERS = {
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "io.strimzi.kafka.EnvVarConfigProvider": "env",
    "io.strimzi.kafka.KubernetesSecretConfigProvider": "mounted",
    "io.strimzi.kafka.KubernetesConfigMapConfigProvider": "mounted",
}
# Where config.providers does not name them: what they are called everywhere, and our own.
USUAL = {"file": "file", "dir": "dir", "directory": "dir", "env": "env", "secrets": "mounted", "secret": "secret"}
KAFKA_REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}:]*):)?([^}]*)\}")


def providers_of(settings: Settings) -> dict[str, str]:
    """The kind of each provider by its name; a class that we do not know has the kind ``."""
    named = settings.first("config.providers")
    names = listed(named.value) if named else []
    classes = {name: settings.first(f"config.providers.{name}.class") for name in names}
    return USUAL | {name: PROVIDERS.get(each.value.strip(), "") for name, each in classes.items() if each}


def ours(text: str, providers: Mapping[str, str], secrets_dir: str) -> str:
    """Kafka's references as ours; ValueError where a provider is not one we know."""

    def written(match: re.Match[str]) -> str:
        kind, path, key = providers.get(match[1], ""), match[2] or "", match[3]
        if kind == "file":
            return f"${{file:{path}:{key}}}" if path else f"${{file:{key}}}"
        if kind == "mounted":
            return f"${{file:{secrets_dir}/{path.rpartition('/')[2]}/{key}}}"
        plain = {"dir": f"${{file:{path.rstrip('/')}/{key}}}", "env": f"${{env:{key}}}", "secret": match[0]}
        if kind not in plain:
            raise ValueError(
                "refers to a config provider that is not supported: use those for files, directories and the "
                "environment, or ${secret:scope/key}"
            )
        return plain[kind]

    return KAFKA_REFERENCE.sub(written, text)


def whole_file(text: str) -> str | None:
    """The path, where the text is one reference to a whole file."""
    match = re.fullmatch(r"\$\{file:([^}:]+)\}", text.strip())
    return match[1] if match else None


DEFAULT_SECRETS_DIR = "/etc/mirrorlake/secrets"
