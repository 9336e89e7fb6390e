"""Java's stores as PEM: made by the JVM's own keytool, read by us."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.errors import UsageFault
from mirrorlake.lab import certs
from mirrorlake.stores import StoreType, authorities, identity, store_type

PASSWORD = 'pa"ss word'


@pytest.fixture(scope="module")
def ca() -> certs.Identity:
    return certs.authority()


def p12_truststore(path: Path, ca: certs.Identity) -> Path:
    path.write_bytes(
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(ca.certificate, b"ca")], BestAvailableEncryption(PASSWORD.encode())
        )
    )
    return path


def p12_keystore(path: Path, ca: certs.Identity, own: certs.Identity) -> Path:
    encryption = BestAvailableEncryption(PASSWORD.encode())
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(b"me", own.key, own.certificate, [ca.certificate], encryption)
    )
    return path


def as_jks(source: Path, target: Path) -> Path:
    """What `keytool` makes of a PKCS12 store; JKS passwords of keytool are ASCII."""
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("needs keytool")
    subprocess.run(
        [keytool, "-importkeystore", "-noprompt", "-srckeystore", source, "-srcstoretype", "PKCS12", "-srcstorepass",
         PASSWORD, "-destkeystore", target, "-deststoretype", "JKS", "-deststorepass", "changeit"],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


def test_a_pkcs12_truststore_gives_its_authorities(tmp_path: Path, ca: certs.Identity) -> None:
    path = p12_truststore(tmp_path / "trust.jks", ca)  # the name lies, as it does since Java 9
    assert store_type(path) is StoreType.PKCS12
    assert authorities(str(path), PASSWORD).encode() == ca.certificate_pem
    ssl.create_default_context(cadata=authorities(str(path), PASSWORD))


def test_a_pkcs12_keystore_gives_key_and_chain(tmp_path: Path, ca: certs.Identity) -> None:
    own = certs.issue(ca, "me")
    found = identity(str(p12_keystore(tmp_path / "key.p12", ca, own)), PASSWORD, "")
    assert found.certificates_pem.encode() == own.certificate_pem + ca.certificate_pem
    assert load_pem_private_key(found.key_pem.encode(), None).private_numbers() == own.key.private_numbers()
    assert "PRIVATE" not in repr(found)


def test_a_jks_truststore_and_a_jks_keystore(tmp_path: Path, ca: certs.Identity) -> None:
    own = certs.issue(ca, "me")
    trust = as_jks(p12_truststore(tmp_path / "trust.p12", ca), tmp_path / "trust.jks")
    keys = as_jks(p12_keystore(tmp_path / "key.p12", ca, own), tmp_path / "key.jks")
    assert (store_type(trust), store_type(keys)) == (StoreType.JKS, StoreType.JKS)
    assert authorities(str(trust), "changeit").encode() == ca.certificate_pem
    assert authorities(str(trust), "").encode() == ca.certificate_pem
    found = identity(str(keys), "changeit", PASSWORD)  # keytool leaves the key its own password
    assert load_pem_private_key(found.key_pem.encode(), None).private_numbers() == own.key.private_numbers()
    for wrong in (lambda: authorities(str(trust), "wrong"), lambda: identity(str(keys), "changeit", "wrong")):
        with pytest.raises(UsageFault, match="does not open with the password") as refused:
            wrong()
        assert "keytool -list" in refused.value.next_step


def test_what_a_store_does_not_hold_is_said(tmp_path: Path, ca: certs.Identity) -> None:
    trust = p12_truststore(tmp_path / "trust.p12", ca)
    with pytest.raises(UsageFault, match="holds no private key"):
        identity(str(trust), PASSWORD, "")
    with pytest.raises(UsageFault, match="does not open with the password"):
        authorities(str(trust), "wrong")
    with pytest.raises(UsageFault, match="could not be read: No such file"):
        authorities(str(tmp_path / "absent"), "")
    (tmp_path / "old").write_bytes(b"\xce\xce\xce\xce1234")
    with pytest.raises(UsageFault, match="JCEKS") as refused:
        store_type(tmp_path / "old")
    assert "-deststoretype PKCS12" in refused.value.next_step
    assert store_type(tmp_path / "absent") is StoreType.PEM


@given(st.binary(max_size=200))
def test_a_damaged_store_is_one_sentence(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("damaged") / "x.jks"
    for head in (b"\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x01", b"\x30\x82"):
        path.write_bytes(head + tail)
        with pytest.raises(UsageFault):
            authorities(str(path), "")
