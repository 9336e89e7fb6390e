"""A TLS handshake, looked at: the chain a server shows, whether it would be trusted, and if not, exactly why."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cryptography import x509

from mirrorlake.errors import AccessRefused, ClusterUnreachable, MirrorlakeError, UsageFault

TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Shown:
    """One certificate of a chain."""

    subject: str
    issuer: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    sha256: str
    pem: str
    is_authority: bool

    @property
    def self_signed(self) -> bool:
        return self.subject == self.issuer

    def days_left(self, now: datetime) -> int:
        return (self.not_after - now).days


@dataclass(frozen=True)
class Handshake:
    """What a server showed, in its order: its own certificate first."""

    chain: tuple[Shown, ...]
    version: str

    @property
    def authority(self) -> Shown | None:
        """The root, where the server sends it: what a client could trust."""
        return next((each for each in reversed(self.chain) if each.is_authority and each.self_signed), None)


def look(host: str, port: int) -> Handshake:
    """The chain, whether trusted or not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _connect(host, port, context)


def verify(host: str, port: int, settings: Mapping[str, str | bool]) -> Handshake:
    """As a client with these settings of librdkafka would do it; AccessRefused says what is wrong, theirs or ours."""
    context = _trusting(settings)
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm", "https") == "https"
    with _identity(settings) as own:
        if own:
            context.load_cert_chain(*own, password=str(settings.get("ssl.key.password", "")))
    return _connect(host, port, context)


def _trusting(settings: Mapping[str, str | bool]) -> ssl.SSLContext:
    """Authorities of our own replace the system's, as they do for librdkafka."""
    path, pem = str(settings.get("ssl.ca.location", "")), str(settings.get("ssl.ca.pem", ""))
    if not path and not pem:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path or None, cadata=pem or None)
    except OSError as bad:
        raise UsageFault(
            f"{path or 'the truststore'} holds no certificates that can be read: {bad.strerror or bad}",
            "security.ca must be a PEM, JKS or PKCS12 file of certificates",
        ) from None
    return context


@contextlib.contextmanager
def _identity(settings: Mapping[str, str | bool]) -> Iterator[tuple[str, str] | None]:
    """Our certificate and key as files, which is all that Python takes; those made of a keystore go at once."""
    if "ssl.certificate.location" in settings:
        yield str(settings["ssl.certificate.location"]), str(settings["ssl.key.location"])
    elif "ssl.key.pem" in settings:
        with tempfile.TemporaryDirectory(prefix="mirrorlake-") as folder:  # readable by its owner alone
            names = {"certificate": settings["ssl.certificate.pem"], "key": settings["ssl.key.pem"]}
            for name, text in names.items():
                with os.fdopen(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                    file.write(str(text))
            yield f"{folder}/certificate", f"{folder}/key"
    else:
        yield None


def _connect(host: str, port: int, context: ssl.SSLContext) -> Handshake:
    where = f"{host}:{port}"
    try:
        plain = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
        with plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
            found = Handshake(tuple(map(shown, _chain(wrapped))), wrapped.version() or "")
            if context.verify_mode is ssl.CERT_REQUIRED:
                _await_alert(wrapped)
            return found
    except ssl.SSLCertVerificationError as bad:
        raise explain(where, bad) from None
    except ssl.SSLError as bad:
        raise explain_alert(where, bad) from None
    except OSError as bad:
        raise ClusterUnreachable(
            f"{where} ended the TLS handshake: {bad}",
            "does this port speak TLS at all? a plain listener wants security.protocol PLAINTEXT or SASL_PLAINTEXT",
        ) from None


def _await_alert(wrapped: ssl.SSLSocket) -> None:
    """With TLS 1.3 a server that misses our certificate says so only after the handshake; one that does not, waits."""
    wrapped.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        wrapped.recv(1)


def _chain(wrapped: ssl.SSLSocket) -> list[bytes]:
    """All that the server sent. Before Python 3.13 only the underlying object tells."""
    inner: Any = wrapped if hasattr(wrapped, "get_unverified_chain") else wrapped._sslobj  # type: ignore[attr-defined]
    sent = inner.get_unverified_chain() or []
    return [each if isinstance(each, bytes) else each.public_bytes(2) for each in sent]  # 2 is DER


def shown(der: bytes) -> Shown:
    certificate = x509.load_der_x509_certificate(der)
    return Shown(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        _hosts(certificate),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        hashlib.sha256(der).hexdigest(),
        ssl.DER_cert_to_PEM_cert(der),
        _is_authority(certificate),
    )


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


# --- what is wrong ---


def explain(where: str, bad: ssl.SSLCertVerificationError) -> MirrorlakeError:
    said = f"{where}: {bad.verify_message}"
    host = where.rpartition(":")[0]
    if "has expired" in said or "not yet valid" in said:
        return AccessRefused(
            said, f"the certificate of {host} has expired or begins later: renew it; is this machine's clock right?"
        )
    if "mismatch" in said or "not valid for" in said:
        return AccessRefused(
            said, f"the certificate does not have the host name {host}: use a name it has, or have it issued with it"
        )
    return AccessRefused(
        said, "its authority is not among those we trust: set security.ca to it; --save-ca writes what the server shows"
    )


def explain_alert(where: str, bad: ssl.SSLError) -> MirrorlakeError:
    reason = (bad.reason or str(bad)).replace("_", " ").lower()
    if any(word in reason for word in ("wrong version", "record layer", "packet length", "eof")):
        return AccessRefused(
            f"{where} does not speak TLS ({reason})", "set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    return AccessRefused(
        f"{where} refused our certificate, or that we have none: {reason}",
        "set security.certificate and key (or keystore) to ones that its authority signed",
    )


def save_authority(found: Handshake, path: Path) -> Shown:
    """Write down the root that a server shows. Whoever sits in between could show another: compare the fingerprint."""
    root = found.authority
    if root is None:
        issuer = found.chain[-1].issuer if found.chain else "its issuer"
        raise UsageFault(
            f"the server does not send its authority ({issuer}), so there is nothing to save",
            "ask whoever runs the cluster for the CA certificate",
        )
    path.write_text(root.pem)
    return root


def utc_now() -> datetime:
    return datetime.now(timezone.utc)
