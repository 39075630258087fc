"""Downloads for a lessee: from sources its class allows, and never from the host itself.

A lessee may give a URL instead of sending an image, and the exporter's host connects to it.
Every address is resolved and checked before the connection, the connection is made to a
checked address, and every redirect is checked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult
from anyio import BrokenResourceError
from jumpstarter.driver import Driver
from jumpstarter.streams.aiohttp import AiohttpStreamReaderStream
from jumpstarter.streams.common import create_memory_stream

REDIRECTS_MAX = 10
CONNECT_SECONDS_MAX = 10.0
RESOLVE_SECONDS_MAX = 10.0
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
ANY_PUBLIC = "*"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class FetchRefused(ValueError):
    """A URL that must not be fetched, and why."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources from which a class allows downloads."""

    names: tuple[str, ...] = ()
    """Host names; ``*.example.org`` matches every name below it."""

    networks: tuple[Network, ...] = ()
    any_public: bool = False

    @classmethod
    def of(cls, entries: tuple[str, ...]) -> Sources:
        """Raises ``ValueError`` for an entry that is neither a name nor a network."""
        networks = [network for entry in entries if (network := _network(entry)) is not None]
        names = [entry.lower() for entry in entries if _network(entry) is None]
        return cls(
            names=tuple(name for name in names if name != ANY_PUBLIC),
            networks=tuple(networks),
            any_public=ANY_PUBLIC in names,
        )

    def refusal(self, host: str, address: Address) -> str:
        """Why ``host`` at ``address`` is not allowed; empty if it is."""
        plain = getattr(address, "ipv4_mapped", None) or address
        if reason := _never(plain):
            return f"{plain} is {reason}, which is never fetched from"
        if any(_covers(name, host) for name in self.names):
            return ""
        if any(plain in network for network in self.networks):
            return ""
        if self.any_public and plain.is_global and not _is_own(plain):
            return ""
        return (
            f"its class does not list {host} ({plain}) in fetchFrom; download it, and flash the"
            " file instead"
        )


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        if "/" in entry:
            raise
        return None


def _covers(name: str, host: str) -> bool:
    host = host.lower().rstrip(".")
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _never(address: Address) -> str:
    for found, name in (
        (address.is_loopback, "a loopback address"),
        (address.is_link_local, "a link-local address"),
        (address.is_unspecified, "the unspecified address"),
        (address.is_multicast, "a multicast address"),
    ):
        if found:
            return name
    return ""


def _is_own(address: Address) -> bool:
    """Whether the address is local: a connection to it has the same source address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False
        return str(probe.getsockname()[0]) == str(address)


class _Pinned(AbstractResolver):
    """Resolves to the addresses that were checked."""

    def __init__(self, checked: list[ResolveResult]) -> None:
        self._checked = checked

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return self._checked

    async def close(self) -> None:
        """There is nothing to close."""


async def checked_addresses(url: yarl.URL, sources: Sources) -> list[ResolveResult]:
    """All addresses of the URL's host; raises ``FetchRefused`` if one of them is not allowed."""
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchRefused(f"{_shown(url)} is not fetched: only http and https URLs are supported")
    assert url.port is not None
    try:
        async with asyncio.timeout(RESOLVE_SECONDS_MAX):
            found = await asyncio.get_running_loop().getaddrinfo(
                url.host, url.port, type=socket.SOCK_STREAM
            )
    except (OSError, TimeoutError) as error:
        raise RuntimeError(f"{url.host} cannot be resolved: {error}") from None
    for *_, place in found:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        if reason := sources.refusal(url.host, address):
            raise FetchRefused(f"{_shown(url)} is not fetched: {reason}")
    return [
        ResolveResult(
            hostname=url.host,
            host=str(place[0]),
            port=url.port,
            family=family,
            proto=proto,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for family, _, proto, _, place in found
    ]


@contextlib.asynccontextmanager
async def _answer(
    method: str, url: yarl.URL, sources: Sources, *, seconds_max: float, **chosen: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send one request to a checked address; redirects are not followed."""
    addresses = await checked_addresses(url, sources)
    connector = aiohttp.TCPConnector(resolver=_Pinned(addresses), use_dns_cache=False)
    timeout = aiohttp.ClientTimeout(total=seconds_max, sock_connect=CONNECT_SECONDS_MAX)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.request(
            method, url, allow_redirects=False, raise_for_status=True, **chosen
        ) as response,
    ):
        yield response


@contextlib.asynccontextmanager
async def fetched(
    url: str, headers: Mapping[str, str], sources: Sources, *, seconds_max: float
) -> AsyncIterator[AiohttpStreamReaderStream]:
    """Download ``url``, following redirects as long as they are allowed."""
    current, sent = yarl.URL(url, encoded=True), dict(headers)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(REDIRECTS_MAX + 1):
            response = await stack.enter_async_context(
                _answer("GET", current, sources, seconds_max=seconds_max, headers=sent)
            )
            if response.status not in REDIRECT_STATUSES:
                yield AiohttpStreamReaderStream(reader=response.content)
                return
            following = current.join(yarl.URL(response.headers.get("Location", ""), encoded=True))
            if following.origin() != current.origin():
                sent = {}
            current = following
        raise RuntimeError(f"{_shown(yarl.URL(url, encoded=True))} redirects too often")


@contextlib.asynccontextmanager
async def sent(
    url: str, headers: Mapping[str, str], sources: Sources, *, seconds_max: float
) -> AsyncIterator[Any]:
    """A stream whose content is uploaded to ``url``."""
    target = yarl.URL(url, encoded=True)
    await checked_addresses(target, sources)  # before anything needs closing
    remote, stream = create_memory_stream()  # type: ignore[no-untyped-call]
    async with (
        remote,
        stream,
        _answer(
            "PUT", target, sources, seconds_max=seconds_max, headers=dict(headers), data=remote
        ) as response,
    ):
        if response.status in REDIRECT_STATUSES:
            raise FetchRefused(f"{_shown(target)} redirects, which is not followed when writing")
        yield stream


def _shown(url: yarl.URL) -> str:
    """The URL without parts that may be secret."""
    return str(url.with_query(None).with_fragment(None).with_user(None)) if url.host else str(url)


@contextlib.asynccontextmanager
async def requested(
    sources: Sources, headers: Mapping[str, str], url: str, method: str, seconds_max: float
) -> AsyncIterator[Any]:
    """The stream of a lessee's request: to read from, or to write to."""
    request = sent if method == "PUT" else fetched
    try:
        async with request(url, headers, sources, seconds_max=seconds_max) as stream:
            yield stream
    except (aiohttp.ClientError, BrokenResourceError, TimeoutError) as error:
        shown = _shown(yarl.URL(url, encoded=True))
        cause = error.__cause__ or error
        raise RuntimeError(f"{shown} cannot be fetched: {type(cause).__name__}: {cause}") from None


@contextlib.asynccontextmanager
async def _from_nowhere(
    _driver: Driver, headers: Mapping[str, str], url: str, method: str, timeout: int
) -> AsyncIterator[Any]:
    async with requested(Sources(), headers, url, method, timeout) as stream:
        yield stream


def guard_drivers() -> None:
    """Prevent all drivers in this process from fetching for a lessee without own rules.

    Jumpstarter gives every driver a method that sends any request a client asks for.
    """
    driver: Any = Driver
    driver._resource_from_presigned = _from_nowhere
