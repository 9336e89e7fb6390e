"""A token endpoint as OAUTHBEARER needs one: client credentials in, a signed token out, over TLS."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from mirrorlake.lab import certs


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Issuer:
    """Signs tokens, and says with which key."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwks(self) -> str:
        public = self._key.public_key().public_numbers()
        n, e = (b64(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (public.n, public.e))
        return json.dumps({"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "n": n, "e": e}]})

    def token(self, subject: str, scope: str) -> str:
        now = int(time.time())
        claims = {"sub": subject, "scope": scope, "iss": "lab", "aud": "kafka", "iat": now, "exp": now + 300,
                  "jti": uuid.uuid4().hex}  # fmt: skip
        parts = (b64(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT", "kid": "1"}, claims))
        signed = ".".join(parts)
        return f"{signed}.{b64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@contextlib.contextmanager
def token_endpoint(folder: Path, issuer: Issuer, clients: dict[str, str]) -> Iterator[str]:
    """The URL; its certificate comes from `folder/ca.pem`."""
    ca = certs.authority("token endpoint CA")
    (folder / "ca.pem").write_bytes(ca.certificate_pem)
    (folder / "own.pem").write_bytes(certs.issue(ca, "tokens").pem)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            basic = base64.b64decode(self.headers.get("Authorization", "Basic ").split()[-1]).decode()
            user, _, password = basic.partition(":")
            if clients.get(user) != password:
                return self._answer(401, {"error": "invalid_client"})
            token = issuer.token(user, asked.get("scope", [""])[0])
            return self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": 300})

        def _answer(self, code: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
