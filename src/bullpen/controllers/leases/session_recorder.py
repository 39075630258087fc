"""Writes the sessions that a router reports into the status of their lease, with a delay.

A router reports every stream. A lease's status is written at most once per ``PAUSE``, and
hardly more is kept of one lease than its status can list. Several routers may write to the
same lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from bullpen.api.kinds.lease import SESSIONS_MAX, Lease, LeaseSession, LeaseStatus
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.core.leases import lifecycle, sessions
from bullpen.core.leases.sessions import Session
from bullpen.errors import NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Informer
from bullpen.runtime.loop import Outcome, ReconcileLoop, Retry

PAUSE = timedelta(seconds=1)
WORKERS = 16
STREAMS_MAX = 2 * SESSIONS_MAX
"""Streams of one lease that are kept here; beyond that the oldest are not written."""


@dataclass(slots=True)
class _Unwritten:
    """The sessions of one lease that may not be in its status yet."""

    streams: dict[str, LeaseSession] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """Streams whose beginning was reported as an event."""

    def put(self, session: LeaseSession) -> None:
        self.streams[session.stream] = session
        while len(self.streams) > STREAMS_MAX:
            ended = (stream for stream, known in self.streams.items() if known.end_time)
            self.drop(next(ended, next(iter(self.streams))))

    def drop(self, stream: str) -> LeaseSession | None:
        self.told.discard(stream)
        return self.streams.pop(stream, None)


class SessionRecorder:
    """Accepts the reports of one router and writes them to the status of its leases."""

    def __init__(
        self,
        objects: Objects,
        leases: Informer[Lease],
        *,
        clock: Clock,
        events: Events,
        retry: Retry,
    ) -> None:
        self._clock = clock
        self._reconciler = SessionReconciler(objects, leases, events=events)
        self._loop: ReconcileLoop[str] = ReconcileLoop(
            self._reconciler, clock=clock, retry=retry, workers=WORKERS
        )

    def saw(self, session: Session) -> None:
        """A router joined two sides, or one of them left. Returns at once."""
        self._reconciler.seen(session)
        self._loop.add_at(session.lease, self._clock.now() + PAUSE)

    def knows(self, uid: str) -> bool:
        """Whether this is the uid of an open lease, or of one that ended a moment ago."""
        return self._reconciler.knows(uid)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._loop.run()


class SessionReconciler:
    """Reconciles the sessions of one lease, named by its uid."""

    name = "sessions"

    def __init__(self, objects: Objects, leases: Informer[Lease], *, events: Events) -> None:
        self._objects = objects
        self._view = leases
        self._events = events
        self._leases: dict[str, Lease] = {}
        self._unwritten: dict[str, _Unwritten] = {}
        leases.listen(self._changed)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None:
            self._leases[new.metadata.uid] = new
        elif old is not None and old.metadata.uid not in self._unwritten:
            # An ended lease leaves the view before its last sessions are written.
            self._leases.pop(old.metadata.uid, None)

    def knows(self, uid: str) -> bool:
        """Whether this is the uid of an open lease, or of one that ended a moment ago."""
        return uid in self._leases

    def seen(self, session: Session) -> None:
        """Record a router's report; nothing is written yet."""
        lease = self._leases.get(session.lease)
        if lease is None:
            return
        unwritten = self._unwritten.setdefault(session.lease, _Unwritten())
        if sessions.is_probe(session):
            unwritten.drop(session.stream)
            return
        known = unwritten.streams.get(session.stream)
        client = known.client if known else lifecycle.holder(lease)
        unwritten.put(sessions.entry(session, client=client))

    async def reconcile(self, uid: str) -> Outcome:
        lease, unwritten = self._leases.get(uid), self._unwritten.get(uid)
        if lease is None or unwritten is None:
            return Outcome()
        news = tuple(unwritten.streams.values())

        def learnt(newest: Lease) -> LeaseStatus:
            listed = sessions.merged(newest.status.sessions, news)
            return replace(sessions.resumed(newest, news), sessions=listed)

        try:
            written = await change_status(self._objects, self._view, lease, learnt)
        except NotFound:
            self._unwritten.pop(uid, None)
            self._forget(lease)
            return Outcome()
        self._tell(written, unwritten, news)
        if uid not in self._unwritten:
            self._forget(lease)
        return Outcome()

    def _forget(self, lease: Lease) -> None:
        """Forget a lease that has left the view."""
        found = self._view.get(lease.metadata.namespace, lease.metadata.name)
        if found is None or found.metadata.uid != lease.metadata.uid:
            self._leases.pop(lease.metadata.uid, None)

    def _tell(self, lease: Lease, unwritten: _Unwritten, written: tuple[LeaseSession, ...]) -> None:
        """Emit events about opened and closed sessions; forget sessions that are fully written."""
        for session in written:
            if session.end_time is not None:
                self._say(lease, "SessionEnded", f"client {session.client} disconnected")
                if unwritten.streams.get(session.stream) == session:
                    unwritten.drop(session.stream)
            elif session.stream not in unwritten.told:
                unwritten.told.add(session.stream)
                self._say(lease, "SessionStarted", f"client {session.client} connected")
        if not unwritten.streams:
            self._unwritten.pop(lease.metadata.uid, None)

    def _say(self, lease: Lease, reason: str, message: str) -> None:
        self._events.emit(lease, reason=reason, message=message)
