"""What an exporter is told about its leases: a state machine, one state per exporter.

Between two different leases an exporter must be told that it has no lease. Within one lease
it must not be told so, not even across reconnects. An exporter that missed the change would
listen on the old lease for ever, and one that was wrongly told of an end would run its
after-lease hook.

``step`` takes a state and an event and returns the next state and what to do. The state
survives reconnects of the exporter, but not a restart of this process: afterwards, the
lease an exporter listens on shows which lease it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Notice:
    """What an exporter is told about its lease."""

    lease: str = ""
    client: str = ""
    uid: str = ""
    """Tells a lease apart from a later one of the same name; not sent."""

    @property
    def leased(self) -> bool:
        return bool(self.lease)

    @property
    def settled(self) -> bool:
        """Whether the exporter can be told: during an assignment only the lease's uid is known."""
        return self.leased == bool(self.uid)

    def is_over(self, current: Notice) -> bool:
        """Whether an exporter that was last told this must first be told that the lease ended."""
        if self.uid or not self.leased:
            return self.leased and self.uid != current.uid
        # The exporter listened on a lease that no view knew, so only its name is known.
        return current.settled and self.lease != current.lease


@dataclass(frozen=True, slots=True)
class Activity:
    """What an exporter is doing and should finish before it is told that its lease ended."""

    doing: object
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What one exporter was told, and which lease it was found to hold."""

    told: Notice | None = None
    """The last notice; None if this process has sent none and knows of none."""

    unconfirmed: Notice | None = None
    """A lease the exporter was told of before it was known what it had been told earlier."""

    holds: Notice | None = None
    """The lease the exporter was found to hold, if not the one it was told of."""

    awaited: Activity | None = None

    def doubts(self, current: Notice) -> bool:
        """Whether ``current`` must be read anew before a new stream of the exporter says it.

        Another process may have assigned the exporter a lease that no view here knows yet, and
        the exporter may have told this process so by listening on it.
        """
        if self.told is None:
            return not current.leased
        return self.told.is_over(current)


NEW = Conversation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A Status stream of the exporter is open, and something may have changed."""

    current: Notice
    """The lease according to the stored objects."""

    said: Notice | None
    """The last notice sent on this stream; None if none has been sent yet."""

    doing: object
    patience: timedelta
    """How long the exporter may finish its activity before it is told that the lease ended."""

    at: float
    """Seconds on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listened:
    """The exporter opened Listen, which shows which lease it holds."""

    lease: str
    uid: str
    """Empty if no such lease is known."""


@dataclass(frozen=True, slots=True)
class BecameAvailable:
    """The exporter reported, without a Status stream, that it is available: it has no lease."""


Event = Looked | Listened | BecameAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next state, and what to do."""

    state: Conversation
    notice: Notice | None = None
    """Sent on the stream that looked."""

    look_again: bool = False
    """Streams of the exporter must look again now."""

    look_after: timedelta | None = None
    """Streams must look again after this time, if nothing happens before."""


def step(state: Conversation, event: Event) -> Step:
    match event:
        case Looked():
            return _looked(state, event)
        case Listened():
            return _listened(state, event)
        case BecameAvailable():
            return Step(state=replace(state, told=None))
        case _:
            assert_never(event)


def _looked(state: Conversation, look: Looked) -> Step:
    before = (state.told or Notice()) if look.said is None else look.said
    told = state.holds or before
    if told.is_over(look.current):
        return _ending(state, told, look)
    if not look.current.settled:
        return Step(state=state)
    known = replace(state, holds=None)
    return Step(state=known) if look.current == look.said else _said(known, look.current)


def _ending(state: Conversation, told: Notice, look: Looked) -> Step:
    """The exporter must be told that ``told`` ended, as soon as it may be interrupted."""
    doing = (told.uid, look.doing)
    known = state.awaited
    begins = bool(look.patience) and (known is None or known.doing != doing)
    since = look.at if begins or known is None else known.since
    if look.at - since < look.patience.total_seconds():
        waiting = replace(state, awaited=Activity(doing, since))
        after = look.patience if begins else None
        # A new stream repeats the lease; otherwise nothing is sent until the exporter is done.
        found = _said(waiting, told) if look.said is None else Step(state=waiting)
        return replace(found, look_after=after)
    return _said(replace(state, awaited=None, holds=None), Notice())


def _said(state: Conversation, notice: Notice) -> Step:
    unconfirmed = notice if notice.leased and state.told is None else None
    return Step(state=replace(state, told=notice, unconfirmed=unconfirmed), notice=notice)


def _listened(state: Conversation, event: Listened) -> Step:
    """After a restart of the service, an exporter may hold a lease that ended meanwhile.

    The exporter would ignore every later lease unless it is told that this one ended.
    """
    held, told = Notice(lease=event.lease, uid=event.uid), state.unconfirmed
    confirmed = replace(state, unconfirmed=None)
    if state.told is None:
        return Step(state=replace(confirmed, told=held))
    if told is not None and told.lease != event.lease:
        return Step(state=replace(confirmed, holds=held), look_again=True)
    return Step(state=confirmed)
