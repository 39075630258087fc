"""Outside issuers of tokens, from the settings; their documents are fetched over HTTP."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException

from bullpen.app.config import Config, OidcIssuer
from bullpen.errors import Refused, Unavailable
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
        audiences=frozenset(item.audiences),
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


def fetcher(ca_files: Iterable[str]) -> Fetch:
    """A function that fetches a document; trusts ``ca_files`` besides the system's CAs."""
    context = ssl.create_default_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise Refused(f"{path} cannot be used as a certificate authority: {error}") from None

    async def fetch(url: str) -> bytes:
        if not url.startswith(("https://", "http://")):
            raise Unavailable(f"{url} is not an address that can be fetched")
        return await asyncio.to_thread(_get, url, context)

    return fetch


def _get(url: str, context: ssl.SSLContext) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_MAX, context=context) as answer:
            body: bytes = answer.read(BYTES_MAX + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"{url} cannot be read: {error}") from None
    if len(body) > BYTES_MAX:
        raise Unavailable(f"{url} is larger than {BYTES_MAX} bytes")
    return body
