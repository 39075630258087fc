"""The fixture ``claim``: the targets of a test, connected, by the names of their requests."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from bullpen.client import config
from bullpen.client.claims import Claims, connected, targets_of
from bullpen.client.config import ClientConfig
from bullpen.client.connection import Connection
from bullpen.kit import durations
from bullpen.protocol.claim_documents import spec_message


class ClaimedTargets(Mapping[str, Any]):
    """Jumpstarter's clients of the targets. ``claim["dut"]`` is the first of its request."""

    def __init__(self, clients: dict[str, list[Any]], leases: dict[str, list[str]]) -> None:
        self._clients = clients
        self.leases = leases
        """By request, the names of the leases."""

    def __getitem__(self, request: str) -> Any:
        return self._clients[request][0]

    def all(self, request: str) -> list[Any]:
        """The clients of all targets of a request."""
        return list(self._clients[request])

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def spec_of(
    requests: Mapping[str, str | Mapping[str, Any]], match: str | tuple[str, ...], duration: str
) -> Any:
    """The claim that a marker describes: a class, or a request as in a DeviceClaim, by name."""
    return spec_message(
        {
            "duration": duration,
            "requests": [
                {
                    "name": name,
                    "exactly": {"deviceClassName": asked} if isinstance(asked, str) else asked,
                }
                for name, asked in requests.items()
            ],
            "constraints": [
                {"matchAttribute": attribute}
                for attribute in ((match,) if isinstance(match, str) else match)
                if attribute
            ],
        }
    )


@contextlib.contextmanager
def claimed(
    requests: Mapping[str, str | Mapping[str, Any]],
    *,
    match: str | tuple[str, ...] = (),
    duration: str = "30m",
    timeout: str = "2h",
    client_config: str = "",
) -> Iterator[ClaimedTargets]:
    """Claim targets, connect to all of them, and release them in the end.

    The client is that of ``client_config``, or the one that ``bullpen shell`` would use.
    """
    from anyio.from_thread import start_blocking_portal

    spec, known = spec_of(requests, match, duration), _known(client_config)
    limit = durations.parse(timeout)
    with (
        start_blocking_portal() as portal,
        contextlib.ExitStack() as stack,
        portal.wrap_async_context_manager(_targets(known, spec, limit, portal, stack)) as targets,
    ):
        yield targets


def _known(path: str) -> ClientConfig:
    if path:
        return config.load(Path(path))
    environment = os.environ  # noqa: TID251 - a fixture has no command line
    data = config.default_data_directory(environment, Path.home())
    return config.find(environment, data, Path.home())


@contextlib.asynccontextmanager
async def _targets(
    known: ClientConfig, spec: Any, timeout: timedelta, portal: Any, stack: contextlib.ExitStack
) -> AsyncIterator[ClaimedTargets]:
    from jumpstarter.client import client_from_path

    unsafe = "UNSAFE" in known.drivers_allow or not known.drivers_allow
    async with contextlib.AsyncExitStack() as opened:
        directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="bullpen-"))
        connection = await opened.enter_async_context(Connection(known))
        held = Claims(connection).held(spec, timeout=timeout, progress=print)
        targets = targets_of(await opened.enter_async_context(held))
        connections = await opened.enter_async_context(
            connected(connection, targets, Path(directory))
        )
        clients: dict[str, list[Any]] = {}
        leases: dict[str, list[str]] = {}
        for target, (socket, _) in zip(targets, connections, strict=True):
            client = await opened.enter_async_context(
                client_from_path(
                    str(socket), portal, stack, allow=list(known.drivers_allow), unsafe=unsafe
                )
            )
            clients.setdefault(target.request, []).append(client)
            leases.setdefault(target.request, []).append(target.lease)
        yield ClaimedTargets(clients, leases)
