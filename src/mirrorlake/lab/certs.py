"""Certificates for local brokers, good ones and, for tests, wrong ones."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL_HOSTS = ("localhost", "127.0.0.1")
VALID_DAYS = 825


@dataclass(frozen=True)
class Identity:
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        # PKCS8 is what Kafka's PEM keystores and librdkafka both read.
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def pem(self) -> bytes:
        """Both in one file, as Kafka's PEM keystores want them."""
        return self.key_pem + self.certificate_pem


def authority(name: str = "Mirrorlake lab CA") -> Identity:
    """A certificate authority; two calls make two that do not trust each other."""
    key = ec.generate_private_key(ec.SECP256R1())
    draft = (
        _draft(name, name, key, VALID_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Identity(key, draft.sign(key, hashes.SHA256()))


def issue(ca: Identity, name: str, hosts: Sequence[str] = LOCAL_HOSTS, valid_days: int = VALID_DAYS) -> Identity:
    """A certificate for both ends; other `hosts` make a wrong one, negative `valid_days` an expired one."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = ca.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    both_ends = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    draft = (
        _draft(name, str(issuer), key, valid_days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(both_ends, critical=False)
    )
    return Identity(key, draft.sign(ca.key, hashes.SHA256()))


def _draft(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, valid_days: int) -> x509.CertificateBuilder:
    until = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=valid_days)
    since = min(dt.datetime.now(dt.timezone.utc), until) - dt.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
