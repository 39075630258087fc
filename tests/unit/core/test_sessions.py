"""What a lease remembers of its connections."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.lease import SESSIONS_MAX, Lease, LeaseSession, LeaseSpec, LeaseStatus
from bullpen.api.meta import LocalObjectReference
from bullpen.core import conditions
from bullpen.core.leases import sessions
from bullpen.core.leases.sessions import PROBE_BYTES_MAX, Session
from bullpen.kit.clock import EPOCH

SECOND = timedelta(seconds=1)


def session(seconds: float | None, *, sent: int = 0) -> Session:
    ended = None if seconds is None else EPOCH + timedelta(seconds=seconds)
    return Session(stream="s", lease="u", started=EPOCH, ended=ended, from_client=sent)


def listed(number: int, *, ended: bool = True, start: int | None = None) -> LeaseSession:
    began = EPOCH + SECOND * (number if start is None else start)
    return LeaseSession(
        stream=f"s{number}",
        client="alice",
        start_time=began,
        end_time=began + SECOND if ended else None,
    )


@pytest.mark.parametrize(
    ("given_session", "expected"),
    [
        pytest.param(session(0.2, sent=40), True, id="short and silent"),
        pytest.param(session(0.2, sent=PROBE_BYTES_MAX + 1), False, id="short, but it spoke"),
        pytest.param(session(1.0, sent=40), False, id="silent, but it stayed"),
        pytest.param(session(None), False, id="nobody knows yet"),
    ],
)
def test_is_probe(given_session: Session, expected: bool) -> None:
    assert sessions.is_probe(given_session) is expected


def test_an_entry_is_in_whole_seconds_as_objects_are() -> None:
    half = timedelta(milliseconds=500)
    found = sessions.entry(
        Session(
            stream="s1",
            lease="u",
            started=EPOCH + half,
            ended=EPOCH + 3 * half,
            from_client=7,
            from_exporter=9,
        ),
        client="alice",
    )
    assert found == LeaseSession(
        stream="s1",
        client="alice",
        start_time=EPOCH,
        end_time=EPOCH + SECOND,
        bytes_from_client=7,
        bytes_from_exporter=9,
    )


def test_news_replace_what_was_known_of_the_same_stream() -> None:
    before = (listed(1, ended=False), listed(2))
    assert sessions.merged(before, (listed(1),)) == (listed(1), listed(2))


def test_old_news_does_not_reopen_what_has_ended() -> None:
    """The end of the lease may be written before what the router told a moment earlier."""
    assert sessions.merged((listed(1),), (listed(1, ended=False),)) == (listed(1),)


def test_the_routers_own_end_replaces_the_end_of_the_lease() -> None:
    told = replace(listed(1), bytes_from_client=7)
    assert sessions.merged((listed(1),), (told,)) == (told,)


def test_what_others_wrote_stays() -> None:
    assert sessions.merged((listed(1),), (listed(2),)) == (listed(1), listed(2))


def test_a_long_session_outlives_many_short_ones() -> None:
    found: tuple[LeaseSession, ...] = (listed(0, ended=False),)
    for number in range(1, 3 * SESSIONS_MAX):
        found = sessions.merged(found, (listed(number),))
    assert len(found) == SESSIONS_MAX
    assert found[0] == listed(0, ended=False)
    assert found[-1] == listed(3 * SESSIONS_MAX - 1)


def test_at_the_end_of_the_lease_nothing_goes_on() -> None:
    end = EPOCH + timedelta(minutes=1, milliseconds=300)
    closed = sessions.closed((listed(1), listed(2, ended=False)), now=end)
    assert closed[0] == listed(1)
    assert closed[1].end_time == EPOCH + timedelta(minutes=1)


entries = st.lists(
    st.builds(listed, st.integers(0, 30), ended=st.booleans(), start=st.integers(0, 5)),
    max_size=25,
)


@given(entries, entries)
def test_the_list_is_bounded_ordered_and_names_each_stream_once(
    old: list[LeaseSession], new: list[LeaseSession]
) -> None:
    found = sessions.merged(old, new)
    assert len(found) <= SESSIONS_MAX
    assert [s.start_time for s in found] == sorted(s.start_time for s in found)
    assert len({s.stream for s in found}) == len(found)
    assert sessions.merged(found, ()) == found


@given(entries)
def test_an_open_session_is_dropped_only_when_all_are_open(
    given_entries: list[LeaseSession],
) -> None:
    all_open = {s.stream for s in {s.stream: s for s in given_entries}.values() if not s.end_time}
    kept = sessions.merged(given_entries, ())
    if all_open - {s.stream for s in kept}:
        assert all(s.end_time is None for s in kept)


def test_an_interruption_lasts_until_a_client_connects_again() -> None:
    lease = Lease(
        spec=LeaseSpec(client_ref=LocalObjectReference(name="alice")),
        status=LeaseStatus(
            conditions=conditions.condition(
                (), "Ready", status=True, reason="Ready", message="", generation=1, now=EPOCH
            )
        ),
    )
    assert sessions.resumed(lease, ()) is lease.status
    cut = EPOCH + timedelta(minutes=1)
    status = sessions.interrupted(lease, message="a router stops", now=cut)
    assert [found.type for found in status.conditions] == ["Interrupted", "Ready"]
    assert conditions.holds(status.conditions, "Interrupted")

    lease = replace(lease, status=status)
    before = LeaseSession(stream="a", client="alice", start_time=EPOCH)
    assert sessions.resumed(lease, (before,)) is status
    later = replace(before, stream="b", start_time=cut + timedelta(seconds=5))
    status = sessions.resumed(lease, (before, later))
    assert [found.type for found in status.conditions] == ["Interrupted", "Ready"]
    found = conditions.get(status.conditions, "Interrupted")
    assert found is not None
    assert (found.status, found.reason) == ("False", "Connected")
