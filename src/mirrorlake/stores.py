"""Java's truststores and keystores as PEM, in memory: librdkafka reads nothing else for authorities.

A file is told apart by its first bytes, not by its name: `keytool` has written PKCS12 into `.jks` files since Java 9.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mirrorlake.errors import UsageFault


class StoreType(str, Enum):
    """As Kafka's `ssl.truststore.type` and `ssl.keystore.type` spell it."""

    PEM = "PEM"
    JKS = "JKS"
    PKCS12 = "PKCS12"


@dataclass(frozen=True)
class Identity:
    """A private key and its certificates, the own one first."""

    certificates_pem: str
    key_pem: str

    def __repr__(self) -> str:
        return "Identity(***)"


def store_type(path: str | Path) -> StoreType:
    """What a file holds. One that cannot be read is taken for PEM: whoever opens it says why."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return _type_of(file.read(16), str(path))
    except OSError:
        return StoreType.PEM


def _type_of(head: bytes, path: str) -> StoreType:
    if head.startswith(b"\xfe\xed\xfe\xed"):
        return StoreType.JKS
    if head.startswith(b"\xce\xce\xce\xce"):
        copy = f"keytool -importkeystore -srckeystore {shlex.quote(path)} -srcstoretype JCEKS"
        raise UsageFault(
            f"{path} is a JCEKS store, which is not supported.",
            f"{copy} -destkeystore {shlex.quote(path + '.p12')} -deststoretype PKCS12",
        )
    return StoreType.PKCS12 if head.startswith((b"\x30\x82", b"\x30\x80", b"\x30\x83")) else StoreType.PEM


def authorities(path: str, password: str) -> str:
    """The certificates that a truststore trusts, as PEM."""
    data = _read(path)
    found = _jks(path, data, password) if _type_of(data, path) is StoreType.JKS else _pkcs12(path, data, password)
    if not found.trusted:
        raise UsageFault(
            f"{path} holds no trusted certificate.",
            f"keytool -list -keystore {shlex.quote(path)} shows what it holds; import the CA with keytool -importcert",
        )
    return "".join(_pem("CERTIFICATE", each) for each in found.trusted)


def identity(path: str, password: str, key_password: str) -> Identity:
    """The private key of a keystore, and its chain, as PEM."""
    data = _read(path)
    is_jks = _type_of(data, path) is StoreType.JKS
    found = _jks(path, data, password) if is_jks else _pkcs12(path, data, password)
    if not found.key:
        raise UsageFault(f"{path} holds no private key.", "give the keystore, not the truststore")
    key = _unprotected(path, found.key, key_password or password) if is_jks else found.key
    return Identity("".join(_pem("CERTIFICATE", each) for each in found.chain), _pem("PRIVATE KEY", key))


@dataclass
class _Content:
    trusted: list[bytes]
    key: bytes = b""
    chain: tuple[bytes, ...] = ()


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as bad:
        raise UsageFault(f"{path} could not be read: {bad.strerror}.", "Check the path and its permissions.") from None


def _pem(label: str, der: bytes) -> str:
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def _wrong_password(path: str) -> UsageFault:
    return UsageFault(
        f"{path} does not open with the password given for it.",
        f"keytool -list -keystore {shlex.quote(path)} asks for the password and says whether it is right",
    )


# --- PKCS12 ---


def _pkcs12(path: str, data: bytes, password: str) -> _Content:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise _wrong_password(path) from None
    others = [entry.certificate.public_bytes(Encoding.DER) for entry in store.additional_certs]
    if store.key is None or store.cert is None:
        own = [store.cert.certificate.public_bytes(Encoding.DER)] if store.cert else []
        return _Content(own + others)
    plain = serialization.NoEncryption()
    key = store.key.private_bytes(Encoding.DER, serialization.PrivateFormat.PKCS8, plain)
    return _Content(others, key, (store.cert.certificate.public_bytes(Encoding.DER), *others))


# --- JKS ---

_PRIVATE_KEY, _TRUSTED = 1, 2


def _jks(path: str, data: bytes, password: str) -> _Content:
    """Java's own format: a count, the entries, and a digest over password and content."""
    body, digest = data[:-20], data[-20:]
    # Without a password Java does not check either: certificates are public.
    if password and hashlib.sha1(_utf16(password) + b"Mighty Aphrodite" + body).digest() != digest:  # noqa: S324
        raise _wrong_password(path)
    try:
        return _jks_entries(_Cursor(body, 4))
    except (IndexError, ValueError, UnicodeDecodeError):
        raise UsageFault(f"{path} is a damaged JKS store.", f"keytool -list -keystore {shlex.quote(path)}") from None


def _jks_entries(cursor: _Cursor) -> _Content:
    version, count = cursor.number(4), cursor.number(4)
    found = _Content([])
    for _ in range(count):
        tag = cursor.number(4)
        cursor.take(cursor.number(2))  # alias
        cursor.take(8)  # when it was made
        if tag == _PRIVATE_KEY:
            found.key = cursor.take(cursor.number(4))
            found.chain = tuple(_jks_certificate(cursor, version) for _ in range(cursor.number(4)))
        elif tag == _TRUSTED:
            found.trusted.append(_jks_certificate(cursor, version))
        else:
            raise ValueError("neither key nor certificate")
    return found


def _jks_certificate(cursor: _Cursor, version: int) -> bytes:
    if version == 2:
        cursor.take(cursor.number(2))  # "X.509"
    return cursor.take(cursor.number(4))


class _Cursor:
    """Reads on from where it stands; past the end is a ValueError."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise ValueError("cut short")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")


def _unprotected(path: str, protected: bytes, password: str) -> bytes:
    """Sun's key protection: salt, the key under a stream of SHA-1 digests, and a digest of the plain key."""
    hidden = _der_content(list(_der_items(_der_content(protected)))[1])
    salt, body, check = hidden[:20], hidden[20:-20], hidden[-20:]
    secret = _utf16(password)
    stream = _digests(secret, salt, len(body))
    plain = bytes(a ^ b for a, b in zip(body, stream, strict=False))
    if hashlib.sha1(secret + plain).digest() != check:  # noqa: S324
        raise _wrong_password(path)
    return plain


def _digests(secret: bytes, salt: bytes, length: int) -> bytes:
    stream, last = b"", salt
    while len(stream) < length:
        last = hashlib.sha1(secret + last).digest()  # noqa: S324
        stream += last
    return stream


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be")


def _der_items(content: bytes) -> Iterator[bytes]:
    """The elements one after the other, each whole."""
    at = 0
    while at < len(content):
        header, length = _der_length(content, at)
        yield content[at : at + header + length]
        at += header + length


def _der_content(element: bytes) -> bytes:
    header, length = _der_length(element, 0)
    return element[header : header + length]


def _der_length(data: bytes, at: int) -> tuple[int, int]:
    """(bytes of tag and length, bytes of content)."""
    first = data[at + 1]
    if first < 0x80:
        return 2, first
    return 2 + first - 0x80, int.from_bytes(data[at + 2 : at + 2 + first - 0x80], "big")
