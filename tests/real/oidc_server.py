"""A small OpenID Connect provider on loopback: discovery, keys, and the password grant."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

USERS = {"alice": "wonderland", "mallory": "sneaky"}


class Provider:
    """Knows its users and signs for them."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
        self.address = ""
        self.asked: list[str] = []

    def answer(self, path: str) -> object:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.address,
                "token_endpoint": f"{self.address}/token",
                "authorization_endpoint": f"{self.address}/authorize",
                "jwks_uri": f"{self.address}/keys",
            }
        return KeySet([self.key]).as_dict(private=False) if path == "/keys" else None

    def grant(self, form: dict[str, list[str]]) -> object:
        user, password = form.get("username", [""])[0], form.get("password", [""])[0]
        if form.get("grant_type") != ["password"] or USERS.get(user) != password:
            return None
        return {"access_token": self.token(user), "token_type": "Bearer", "expires_in": 3600}

    def token(self, user: str, *, lasts: int = 3600) -> str:
        now = int(time.time())
        claims = {
            "iss": self.address,
            "aud": "jumpstarter-cli",
            "sub": user,
            "preferred_username": user,
            "iat": now,
            "exp": now + lasts,
        }
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)


@contextlib.contextmanager
def running_provider() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(provider.answer(self.path))

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            self._send(provider.grant(parse_qs(self.rfile.read(length).decode())))

        def _send(self, answer: object) -> None:
            body = json.dumps(answer if answer is not None else {"error": "invalid_grant"}).encode()
            self.send_response(200 if answer is not None else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
