"""The connections a lease records: the most recent ones, open ones first.

A starting client opens a connection only to see whether it can; such probes are not
recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.lease import SESSIONS_MAX, Lease, LeaseSession, LeaseStatus
from bullpen.core import conditions
from bullpen.core.conditions import condition, last

PROBE_LENGTH_MAX = timedelta(seconds=1)
PROBE_BYTES_MAX = 200
"""Bytes sent by the client. A real session has sent more by the end of its handshake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A connected client and exporter: for which lease, how long, and bytes in each direction."""

    stream: str
    lease: str
    """Uid of the lease."""

    started: datetime
    ended: datetime | None = None
    """None while it is open; the bytes are counted at the end."""

    from_client: int = 0
    from_exporter: int = 0


def interrupted(lease: Lease, *, message: str, now: datetime) -> LeaseStatus:
    """The status of an active lease whose streams a router cuts; the lease itself goes on."""
    return _interruption(lease, cut=True, reason="StreamsCut", message=message, now=now)


def endangered(lease: Lease, *, message: str, now: datetime) -> LeaseStatus:
    """The status of an active lease whose target is about to be ended by its provider."""
    return _interruption(lease, cut=True, reason=TARGET_ENDS, message=message, now=now)


def resumed(lease: Lease, news: Iterable[LeaseSession]) -> LeaseStatus:
    """The status once a client has connected again after an interruption."""
    found = conditions.get(lease.status.conditions, INTERRUPTED)
    if found is None or found.status != "True" or found.reason == TARGET_ENDS:
        return lease.status
    later = [one for one in news if one.start_time > found.last_transition_time]
    if not later:
        return lease.status
    text = f"client {later[-1].client} is connected again"
    now = later[-1].start_time
    return _interruption(lease, cut=False, reason="Connected", message=text, now=now)


INTERRUPTED, TARGET_ENDS = "Interrupted", "TargetEnds"


def _interruption(
    lease: Lease, *, cut: bool, reason: str, message: str, now: datetime
) -> LeaseStatus:
    found = condition(
        lease.status.conditions,
        INTERRUPTED,
        status=cut,
        reason=reason,
        message=message,
        generation=lease.metadata.generation,
        now=now,
    )
    return replace(lease.status, conditions=last(found, "Ready"))


def is_probe(session: Session) -> bool:
    """Whether the session ended at once and the client had sent almost nothing."""
    if session.ended is None or session.from_client > PROBE_BYTES_MAX:
        return False
    return session.ended - session.started < PROBE_LENGTH_MAX


def entry(session: Session, *, client: str) -> LeaseSession:
    """A session as it appears in the lease's status: in whole seconds."""
    return LeaseSession(
        stream=session.stream,
        client=client,
        start_time=session.started.replace(microsecond=0),
        end_time=session.ended.replace(microsecond=0) if session.ended else None,
        bytes_from_client=session.from_client,
        bytes_from_exporter=session.from_exporter,
    )


def merged(
    listed: Iterable[LeaseSession], news: Iterable[LeaseSession]
) -> tuple[LeaseSession, ...]:
    """Merge new sessions into the listed ones, which other processes may have changed too.

    At most ``SESSIONS_MAX``, oldest first; closed sessions are dropped before open ones. An
    outdated entry does not reopen a session that has been closed meanwhile.
    """
    found = {session.stream: session for session in listed}
    for session in news:
        known = found.get(session.stream)
        if known is None or known.end_time is None or session.end_time is not None:
            found[session.stream] = session
    ordered = sorted(found.values(), key=lambda session: (session.start_time, session.stream))
    while len(ordered) > SESSIONS_MAX:
        ended = (i for i, session in enumerate(ordered) if session.end_time is not None)
        del ordered[next(ended, 0)]
    return tuple(ordered)


def idle_since(listed: Iterable[LeaseSession], *, begin: datetime) -> datetime | None:
    """Since when a lease that began then has had no connection; None while it has one."""
    latest = begin
    for session in listed:
        if session.end_time is None:
            return None
        latest = max(latest, session.end_time)
    return latest


def closed(listed: Iterable[LeaseSession], *, now: datetime) -> tuple[LeaseSession, ...]:
    """The sessions a status lists once the lease has ended: none remains open."""
    end = now.replace(microsecond=0)
    return tuple(s if s.end_time else replace(s, end_time=end) for s in listed)
