"""Clients that lease, dial and let go all the time, and remember what they were told.

They speak gRPC as ``jmp`` does, from one thread of their own, because a start of ``jmp`` costs
seconds and a lease costs milliseconds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml

from support.grpc_caller import Caller

WORKERS = 4
CALL_SECONDS_MAX = 8.0
HOLD_SECONDS_MAX = 0.3
LASTS_SECONDS = 7200.0
PAUSE_SECONDS = 0.05
CHANNEL_OPTIONS = (
    # A person would try again at once; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)
WANTS = ("board=shelf", "board=mock", "board=mock")


@dataclass
class Account:
    """What the clients know. Read it while they are paused."""

    acknowledged: int = 0
    acquired: int = 0
    dialled: int = 0
    refused: int = 0
    held: dict[str, str] = field(default_factory=dict)
    """Acknowledged leases nobody has begun to give back, with their exporter once known."""

    doubtful: set[str] = field(default_factory=set)
    """Asked for or given back without an answer."""

    wrongs: list[str] = field(default_factory=list)


class Traffic:
    def __init__(self, config: Path, seed: int) -> None:
        self._config: dict[str, Any] = yaml.safe_load(config.read_text())
        self._seed = seed
        self._open = threading.Event()
        self._stopping = threading.Event()
        self._idle: set[int] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.account = Account()

    def start(self) -> None:
        self._open.set()
        self._thread.start()

    def resume(self) -> None:
        self._open.set()

    def pause(self) -> bool:
        """Have every worker keep what it holds and do nothing; whether all of them do."""
        self._open.clear()
        return len(self._idle) == WORKERS

    def stop(self) -> None:
        self._stopping.set()
        self._open.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the clients do not end"

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(number))

    async def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        authority = base64.b64decode(self._config["tls"]["ca"])
        credentials = grpc.ssl_channel_credentials(authority)
        endpoint = self._config["endpoint"]
        async with grpc.aio.secure_channel(endpoint, credentials, CHANNEL_OPTIONS) as channel:
            caller = Caller(channel, self._config, "Client")
            turn = 0
            while not self._stopping.is_set():
                turn += 1
                await self._lease(caller, f"w{number}-{turn}", chance)

    async def _lease(self, caller: Caller, name: str, chance: random.Random) -> None:
        account = self.account
        await self._gate(name)
        account.doubtful.add(name)
        if not await self._called(
            caller.create_lease(chance.choice(WANTS), lease_id=name, lasts=LASTS_SECONDS)
        ):
            await self._clear(caller, name)
            return
        account.doubtful.discard(name)
        account.held[name] = ""
        account.acknowledged += 1
        await self._use(caller, name, chance)
        await self._gate(name)
        del account.held[name]
        account.doubtful.add(name)
        await self._clear(caller, name)

    async def _use(self, caller: Caller, name: str, chance: random.Random) -> None:
        if not await self._called(self._acquire(caller, name)):
            return
        self.account.acquired += 1
        if chance.random() < 0.3 and await self._called(caller.dial(name)):
            self.account.dialled += 1
        await asyncio.sleep(chance.random() * HOLD_SECONDS_MAX)

    async def _acquire(self, caller: Caller, name: str) -> None:
        lease = await caller.acquired(name)
        self.account.held[name] = str(lease.exporter).rpartition("/")[2]

    async def _clear(self, caller: Caller, name: str) -> None:
        """Give back until it is known to be gone."""
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await caller.delete_lease(name)
                break
            except grpc.aio.AioRpcError as error:
                if "there is no lease" in str(error.details()) or "ended" in str(error.details()):
                    break
                self._heard(error)
            except TimeoutError:
                self.account.refused += 1
            await self._gate(name)
            await asyncio.sleep(PAUSE_SECONDS)
        self.account.doubtful.discard(name)

    async def _called(self, call: Any) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                await call
        except grpc.aio.AioRpcError as error:
            self._heard(error)
            await asyncio.sleep(PAUSE_SECONDS)
            return False
        except (TimeoutError, AssertionError):
            # Its exporter died with the lease, or it waits for one that is being replaced.
            self.account.refused += 1
            return False
        return True

    def _heard(self, error: Any) -> None:
        self.account.refused += 1
        if "internal error" in str(error.details()):
            self.account.wrongs.append(f"a client was told {error.details()}")

    async def _gate(self, name: str) -> None:
        number = int(name[1:].partition("-")[0])
        while not self._open.is_set():
            self._idle.add(number)
            await asyncio.sleep(0.02)
        self._idle.discard(number)


def quiet(traffic: Traffic) -> None:
    """End the clients whatever happened to the lab."""
    with contextlib.suppress(AssertionError):
        traffic.stop()
