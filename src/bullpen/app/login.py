"""How people log in: outside issuers of tokens, and the discovery that ``jmp login`` reads.

The documents of issuers are fetched over HTTP. The discovery contains no secrets.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from bullpen.api.paths import Document, encode
from bullpen.app.config import Config, OidcIssuer
from bullpen.errors import Refused, Unauthorized, Unavailable
from bullpen.identity.code_flow import BrowserClient, CodeFlow, Post
from bullpen.identity.oidc import Fetch, Issuer, NamespaceRule, OutsideTokens
from bullpen.kit.clock import Clock

SECONDS_MAX = 5.0
BYTES_MAX = 1 << 20


def outside_tokens(config: Config, clock: Clock) -> OutsideTokens:
    """The issuers whose tokens are accepted besides our own."""
    fetch = fetcher(item.ca_file for item in config.oidc if item.ca_file)
    return OutsideTokens(tuple(map(_issuer, config.oidc)), fetch=fetch, clock=clock)


def _issuer(item: OidcIssuer) -> Issuer:
    return Issuer(
        address=item.issuer,
        audiences=frozenset(item.audiences)
        | ({item.dashboard.client_id} if item.dashboard else frozenset()),
        username_claim=item.username_claim,
        prefix=item.username_prefix,
        namespaces=frozenset(item.namespaces),
        namespace_rules=tuple(
            NamespaceRule(claim=rule.claim, value=rule.value, namespaces=frozenset(rule.namespaces))
            for rule in item.namespace_rules
        ),
        groups_claim=item.groups_claim,
        groups_prefix=item.groups_prefix,
    )


def code_flow(config: Config, tokens: OutsideTokens, clock: Clock) -> CodeFlow:
    """How people sign in at the dashboard with an outside issuer."""
    files = [item.ca_file for item in config.oidc if item.ca_file]
    return CodeFlow(
        tuple(_browser_client(item) for item in config.oidc if item.dashboard),
        tokens,
        fetch=fetcher(files),
        post=poster(files),
        clock=clock,
    )


def _browser_client(item: OidcIssuer) -> BrowserClient:
    assert item.dashboard is not None, "only issuers with a client are asked"
    path, secret = item.dashboard.client_secret_file, ""
    if path:
        try:
            secret = Path(path).read_text().strip()
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from None
    return BrowserClient(
        issuer=item.issuer,
        client_id=item.dashboard.client_id,
        client_secret=secret,
        scopes=item.dashboard.scopes,
    )


def fetcher(ca_files: Iterable[str]) -> Fetch:
    """A function that fetches a document; trusts ``ca_files`` besides the system's CAs."""
    context = _trusting(ca_files)

    async def fetch(url: str) -> bytes:
        return await asyncio.to_thread(_read, _request(url), context)

    return fetch


def poster(ca_files: Iterable[str]) -> Post:
    """A function that sends a form; trusts ``ca_files`` besides the system's CAs."""
    context = _trusting(ca_files)

    async def post(url: str, form: Mapping[str, str], authorization: str) -> bytes:
        request = _request(url, data=urlencode(form).encode())
        if authorization:
            request.add_header("Authorization", authorization)
        return await asyncio.to_thread(_read, request, context)

    return post


def _trusting(ca_files: Iterable[str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise Refused(f"{path} cannot be used as a certificate authority: {error}") from None
    return context


def _request(url: str, data: bytes | None = None) -> Request:
    if not url.startswith(("https://", "http://")):
        raise Unavailable(f"{url} is not an address that can be fetched")
    return Request(url, data=data, headers={"Accept": "application/json"})


def _read(request: Request, context: ssl.SSLContext) -> bytes:
    url = request.full_url
    try:
        with urlopen(request, timeout=SECONDS_MAX, context=context) as answer:
            body: bytes = answer.read(BYTES_MAX + 1)
    except HTTPError as error:
        with error:
            refused = request.data is not None and error.code in (400, 401, 403)
        if refused:
            raise Unauthorized(f"{url} refused the sign-in ({error.code})") from None
        raise Unavailable(f"{url} cannot be read: {error}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"{url} cannot be read: {error}") from None
    if len(body) > BYTES_MAX:
        raise Unavailable(f"{url} is larger than {BYTES_MAX} bytes")
    return body


def discovery(
    config: Config, *, endpoint: str, namespace: str, ca_pem: bytes, router: str = ""
) -> Document:
    """What ``jmp login`` needs to know; without ``router``, the controller names one per call."""
    return {
        "grpcEndpoint": endpoint,
        **({"routerEndpoint": router} if router else {}),
        "namespace": namespace,
        "caBundle": base64.b64encode(ca_pem).decode(),
        "oidc": [
            {"issuer": item.issuer, "clientId": item.client_id, "audiences": item.audiences}
            for item in config.oidc
        ],
    }


class LoginDiscovery:
    """A tiny ASGI application: ``/v1/auth/config`` and ``/healthz``."""

    def __init__(self, config: Document) -> None:
        self._bodies = {
            "/v1/auth/config": (200, encode(config), b"application/json"),
            "/healthz": (200, b"ok", b"text/plain"),
            "/": (200, b"Bullpen login discovery: /v1/auth/config\n", b"text/plain"),
        }

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        status, body, kind = self._bodies.get(scope["path"], (404, b"not found\n", b"text/plain"))
        if scope["method"] not in ("GET", "HEAD"):
            status, body, kind = 405, b"only GET\n", b"text/plain"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
