"""OpenID Connect providers on loopback.

One of our own, because ``jmp login`` without a browser needs the password grant and a JWT as
access token; and a foreign one, whose identity tokens come by the authorization code.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlparse
from urllib.request import HTTPRedirectHandler, build_opener

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

    def token(self, user: str, *, lasts: int = 3600, groups: Sequence[str] = ()) -> str:
        now = int(time.time())
        claims = {
            "groups": list(groups),
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


class ForeignProvider:
    """``oidc-provider-mock``, in a process of its own."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def token(self, user: str, *, audience: str = "jumpstarter-cli") -> str:
        """An identity token for ``user``, as a browser would get it."""
        client = {"client_id": audience, "redirect_uri": "http://127.0.0.1/back"}
        query = urlencode({**client, "response_type": "code", "scope": "openid"})
        headers, _ = self._post(f"/oauth2/authorize?{query}", {"sub": user})
        code = parse_qs(urlparse(headers["Location"]).query)["code"][0]
        grant = {**client, "grant_type": "authorization_code", "code": code, "client_secret": "-"}
        _, body = self._post("/oauth2/token", grant)
        return str(json.loads(body)["id_token"])

    def answers(self) -> bool:
        address = f"{self.address}/.well-known/openid-configuration"
        try:
            with build_opener().open(address, timeout=5):
                return True
        except OSError:
            return False

    def _post(self, path: str, form: dict[str, str]) -> tuple[Message, bytes]:
        """Headers and body of the answer, of a redirection too."""
        opener = build_opener(_Stay)
        try:
            with opener.open(self.address + path, urlencode(form).encode(), timeout=5) as found:
                return found.headers, found.read()
        except HTTPError as redirected:
            with redirected:
                return redirected.headers, b""


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@contextlib.contextmanager
def running_foreign_provider(port: int, *users: str) -> Iterator[ForeignProvider]:
    program = Path(sys.executable).with_name("oidc-provider-mock")
    named = [part for user in users for part in ("--user", user)]
    with subprocess.Popen(
        [str(program), "--port", str(port), *named],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield ForeignProvider(port)
        finally:
            process.terminate()
