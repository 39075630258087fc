"""What every process sets up first: log lines and file descriptors.

Some descriptors are reserved for the service itself: the store, backups, instances and
their consoles.
"""

from __future__ import annotations

import logging
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bullpen.runtime.connections import Bounds

if TYPE_CHECKING:
    from bullpen.app.config import ConnectionConfig

log = logging.getLogger("bullpen.app")

WANTED = 65_536
RESERVED = 256
"""Descriptors for everything except connections."""

CONNECTIONS_MIN = 64
"""Connections allowed even if the limit is too low for the reserve."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many connections each port may have."""

    api: Bounds
    controller: Bounds
    router: Bounds
    login: Bounds
    scaler: Bounds


def raise_descriptor_limit() -> int:
    """Raise the descriptor limit as far as allowed and needed; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < WANTED:
        log.warning(
            "few file descriptors; raise the hard limit (LimitNOFILE=, ulimit -Hn)",
            extra={"key": "descriptors", "limit": wanted, "wanted": WANTED},
        )
    return wanted


def connection_shares(limit: int, config: ConnectionConfig) -> Shares:
    """The connections of each port, given ``limit`` descriptors."""
    room = max(CONNECTIONS_MIN, limit - RESERVED)
    total = min(config.max or room, room)

    def bounds(percent: int) -> Bounds:
        share = max(1, total * percent // 100)
        return Bounds(total=share, per_address=min(config.per_address or share, share))

    return Shares(
        api=bounds(15),
        controller=bounds(40),
        router=bounds(40),
        login=bounds(4),
        scaler=bounds(1),
    )


def only_port_bounds(limit: int) -> Bounds:
    """The connections of a process with one port."""
    room = max(CONNECTIONS_MIN, limit - RESERVED)
    return Bounds(total=room, per_address=room)


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        facts = " ".join(
            f"{name}={value}" for name, value in vars(record).items() if name not in _STANDARD
        )
        head, newline, trace = line.partition("\n")
        return f"{head} {facts}{newline}{trace}" if facts else line


def configure_logs(*, verbose: bool = False) -> None:
    """Send logs to standard error. Libraries log from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%FT%T")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("bullpen").setLevel(logging.DEBUG if verbose else logging.INFO)
