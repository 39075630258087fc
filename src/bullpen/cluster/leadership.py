"""Leader election: the replica that holds a coordination Lease acts.

The rules and times are those of Kubernetes' own components, so that operators find what
they know, with one exception: a leader whose process is seen to exit is replaced at once.
Whether another replica's hold has expired is measured on our own clock, from when we last
saw it renewed, because clocks of two machines need not agree. Every write carries the
revision it is based on, so two replicas can never both acquire the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from bullpen.api.kinds.core import CoordinationLease, CoordinationLeaseSpec
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.errors import AlreadyExists, Conflict, LabError, NotFound, Unavailable
from bullpen.kit.clock import Clock

ADDRESS = "bullpen.dev/address"
"""Annotation with the address where other replicas can check that the leader runs."""

log = logging.getLogger("bullpen.leadership")

KNOCKS = 3
KNOCK_SECONDS = 0.1
CONNECT_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    lasts: timedelta = timedelta(seconds=15)
    """How long other replicas wait after they last saw a renewal."""

    renewed_within: timedelta = timedelta(seconds=10)
    """A leader that could not renew for this long gives up the leadership."""

    retry: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        assert self.retry < self.renewed_within < self.lasts


TIMING = Timing()


class Tell(Protocol):
    def __call__(self, text: str, *, standby: bool = False) -> None: ...


class _Lost(Unavailable):
    """The leadership is lost, as opposed to an API server that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The observed Lease, and when it was first seen in this state."""

    revision: str
    at: float


def may_take(spec: CoordinationLeaseSpec, identity: str, *, idle: float) -> bool:
    """Whether we may acquire a Lease that has been unchanged for ``idle`` seconds."""
    if not spec.holder_identity or spec.holder_identity == identity:
        return True
    lasts = spec.lease_duration_seconds
    return idle > (lasts if lasts is not None else TIMING.lasts.total_seconds())


class Leadership:
    """Our claim to lead under one name."""

    def __init__(
        self,
        objects: Objects,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        address: str = "",
        tell: Tell = lambda text, *, standby=False: None,
        timing: Timing = TIMING,
    ) -> None:
        """``identity`` must be unique among all replicas and their restarts.

        ``address`` is where other replicas can check that we run; ``tell`` is called with what we
        wait for, and whether it is only for another leader to end.
        """
        self.name = name
        self._objects = objects
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._timing = timing
        self._address = address
        self._tell = tell
        self._told = ""
        self._held: CoordinationLease | None = None
        self._seen: Sighting | None = None
        self._watch = LeadershipWatch()
        self._leader = ""
        """The address where the current leader can be checked."""

    async def acquire(self) -> None:
        """Wait until we hold the leadership."""
        try:
            await self._acquire()
        finally:
            self._watch.leave()

    async def _acquire(self) -> None:
        gone = False
        while True:
            try:
                async with asyncio.timeout(self._timing.renewed_within.total_seconds()):
                    self._held = await self._try(gone=gone)
            except (TimeoutError, Conflict, AlreadyExists, NotFound, Unavailable) as error:
                self._say(f"the leader is unknown: {str(error) or 'no answer'}")
            if self._held is not None:
                log.info(
                    "leadership acquired", extra={"key": self.name, "identity": self._identity}
                )
                return
            gone = await self._wait()

    def _say(self, text: str, *, standby: bool = False) -> None:
        """Report what we wait for; it is logged once."""
        self._tell(text, standby=standby)
        if text != self._told:
            log.info("waiting for leadership", extra={"key": self.name, "cause": text})
            self._told = text

    async def _wait(self) -> bool:
        """Wait before the next look; returns whether the leader was seen to exit meanwhile."""
        seconds = self._timing.retry.total_seconds()
        begun = asyncio.get_running_loop().time()
        gone = bool(self._leader) and await self._watch.gone(self._leader, seconds=seconds)
        if gone or self._watch.hung_up:
            # A leader that was told to stop releases the Lease before it hangs up.
            return gone
        spent = asyncio.get_running_loop().time() - begun
        await asyncio.sleep(max(0.0, seconds - spent))
        return False

    async def keep(self) -> None:
        """Renew until cancelled; raises ``Unavailable`` as soon as the leadership is lost."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        within = self._timing.renewed_within.total_seconds()
        while True:
            await asyncio.sleep(self._timing.retry.total_seconds())
            begun = loop.time()
            try:
                async with asyncio.timeout_at(renewed + within):
                    await self._renew()
                renewed = begun
            except _Lost:
                raise
            except (TimeoutError, Unavailable, Conflict, NotFound) as error:
                log.warning("leadership not renewed", extra={"key": self.name, "cause": str(error)})
                if loop.time() >= renewed + within:
                    raise self._lost(f"it could not be renewed for {within:.0f} s") from None

    async def release(self) -> None:
        """Let another replica lead at once. All our work must have ended before."""
        held, self._held = self._held, None
        if held is None:
            return
        spec = replace(
            held.spec, holder_identity="", lease_duration_seconds=1, renew_time=self._clock.now()
        )
        # The next leader would notice anyway, only later.
        with contextlib.suppress(LabError):
            await self._objects.update(replace(held, spec=spec))

    async def _try(self, *, gone: bool) -> CoordinationLease | None:
        """The Lease if we hold it now; ``gone`` if its holder was seen to exit."""
        try:
            found = await self._objects.get(CoordinationLease, self._namespace, self.name)
        except NotFound:
            meta = ObjectMeta(name=self.name, namespace=self._namespace)
            return await self._objects.create(self._ours(CoordinationLease(metadata=meta)))
        idle = self._idle(found)
        vanished = gone and found.metadata.annotations.get(ADDRESS) == self._leader
        if not vanished and not may_take(found.spec, self._identity, idle=idle):
            self._leader = found.metadata.annotations.get(ADDRESS, "")
            self._say(f"standby: {found.spec.holder_identity} is the leader", standby=True)
            return None
        taken = await self._objects.update(self._ours(found))
        log.info(
            "leadership acquired",
            extra={"key": self.name, "before": found.spec.holder_identity or ""},
        )
        return taken

    def _ours(self, found: CoordinationLease) -> CoordinationLease:
        """The Lease with us as its holder."""
        noted = {**found.metadata.annotations, ADDRESS: self._address}
        meta = replace(found.metadata, annotations=noted)
        return replace(found, metadata=meta, spec=self._spec(found.spec))

    def _idle(self, found: CoordinationLease) -> float:
        """For how long the Lease has been unchanged."""
        now, revision = asyncio.get_running_loop().time(), found.metadata.resource_version
        if self._seen is None or self._seen.revision != revision:
            self._seen = Sighting(revision=revision, at=now)
        return now - self._seen.at

    def _spec(self, before: CoordinationLeaseSpec) -> CoordinationLeaseSpec:
        now = self._clock.now()
        changes = before.lease_transitions or 0
        return replace(
            before,
            holder_identity=self._identity,
            lease_duration_seconds=int(self._timing.lasts.total_seconds()),
            acquire_time=now,
            renew_time=now,
            lease_transitions=changes + 1 if before.renew_time is not None else changes,
        )

    async def _renew(self) -> None:
        assert self._held is not None, "only a leader renews"
        fresh = replace(self._held.spec, renew_time=self._clock.now())
        try:
            self._held = await self._objects.update(replace(self._held, spec=fresh))
        except Conflict:
            # Another writer changed it: an operator, or a replica that took the leadership.
            found = await self._objects.get(CoordinationLease, self._namespace, self.name)
            if found.spec.holder_identity != self._identity:
                raise self._lost(
                    f"{found.spec.holder_identity or 'no process'} holds it now"
                ) from None
            self._held = found
            raise

    def _lost(self, why: str) -> _Lost:
        self._held = None
        return _Lost(
            f"the leadership {self.name} was lost: {why}. This process stops, so that two"
            " leaders never act at once; after a restart it is a standby"
        )


class LeadershipWatch:
    """One connection to the current leader, whose end shows that the leader is gone.

    A Lease that is not renewed expires after many seconds; a killed process closes its
    connections at once. Exporters give up after five seconds without a controller, so they are
    hardly affected. A process is reported as gone only after we were connected to it: an
    address that cannot be reached at all proves nothing.
    """

    def __init__(self) -> None:
        self._address = ""
        self._met = False
        """Whether a process ever answered there."""

        self.hung_up = False
        """Whether the connection ended during the last look."""

        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def gone(self, address: str, *, seconds: float) -> bool:
        """Whether the process that answered at ``address`` is gone; watches for ``seconds``.

        One that only hung up is not gone: the next look tells whether it still listens.
        """
        self.hung_up = False
        if address != self._address:
            self.leave()
            self._address, self._met = address, False
        if self._streams is None:
            await self._connect()
        if self._streams is None:
            return self._met and await self._refuses()
        self.hung_up = await self._ended(seconds)
        if self.hung_up:
            self.leave()
        return False

    def leave(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ended(self, seconds: float) -> bool:
        assert self._streams is not None
        try:
            async with asyncio.timeout(seconds):
                return not await self._streams[0].read(1)
        except TimeoutError:
            return False
        except OSError:
            return True

    async def _refuses(self) -> bool:
        """Whether the port is closed, rather than only the connection."""
        for _ in range(KNOCKS):
            await asyncio.sleep(KNOCK_SECONDS)
            if not await self._connect():
                return False
        return True

    async def _connect(self) -> bool:
        """Try to connect; returns whether the machine itself refused the connection."""
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
                self._met = True
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError, ValueError):
            return False
        return False
