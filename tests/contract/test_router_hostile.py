"""Bytes no honest client sends: the router refuses, says why, and keeps nothing."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import TooManyRequests, Unauthorized
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket
from bullpen.services.router import frames
from bullpen.services.router.pairing import LEASE_USED_MAX, LEASE_WAITING_MAX, Pairing
from support.router_helpers import CLOCK, Peer, raw, request
from support.router_helpers import HOSTILE_LIMITS as LIMITS

PING = raw(frames.PING, 0, 0, b"x" * 8)
BIG = b"x" * (LIMITS.header_bytes_max + 1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", frames.PROTOCOL_ERROR, id="not HTTP/2 at all"),
        pytest.param(frames.PREFACE + PING * 51, frames.ENHANCE_YOUR_CALM, id="a flood of pings"),
        pytest.param(
            frames.PREFACE + frames.settings({}) * 51,
            frames.ENHANCE_YOUR_CALM,
            id="a flood of settings",
        ),
        pytest.param(
            frames.PREFACE + frames.rst_stream(1, 8) * 51,
            frames.ENHANCE_YOUR_CALM,
            id="a flood of resets",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.PRIORITY, 0, 1, b"x" * 5) * 51,
            frames.ENHANCE_YOUR_CALM,
            id="a flood of priorities",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.HEADERS, 0, 1, BIG),
            frames.ENHANCE_YOUR_CALM,
            id="headers over the limit",
        ),
        pytest.param(
            frames.PREFACE + request(1, end=0) + raw(frames.CONTINUATION, 0, 1, b"") * 60,
            frames.ENHANCE_YOUR_CALM,
            id="a flood of empty continuations",
        ),
        pytest.param(
            frames.PREFACE + request(1, end=0) + PING,
            frames.PROTOCOL_ERROR,
            id="a header block interrupted",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.CONTINUATION, 4, 1, b""),
            frames.PROTOCOL_ERROR,
            id="a continuation of nothing",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"),
            frames.COMPRESSION_ERROR,
            id="headers that do not unpack",
        ),
        pytest.param(frames.PREFACE + request(2), frames.PROTOCOL_ERROR, id="an even stream"),
        pytest.param(
            frames.PREFACE + request(3) + request(1), frames.PROTOCOL_ERROR, id="a stream again"
        ),
        pytest.param(
            frames.PREFACE + raw(frames.DATA, 0, 5, b"x"),
            frames.PROTOCOL_ERROR,
            id="data on a stream that never was",
        ),
        pytest.param(
            frames.PREFACE + frames.head(LIMITS.frame_size_max + 1, frames.DATA, 0, 1),
            frames.FRAME_SIZE_ERROR,
            id="a frame over the agreed size",
        ),
        pytest.param(
            frames.PREFACE + frames.window_update(0, 0), frames.PROTOCOL_ERROR, id="no increment"
        ),
        pytest.param(
            frames.PREFACE + frames.window_update(0, frames.WINDOW_LARGEST),
            frames.FLOW_CONTROL_ERROR,
            id="a window over the largest",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.PUSH_PROMISE, 4, 1, b"xxxx"),
            frames.PROTOCOL_ERROR,
            id="a client that pushes",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.SETTINGS, 0, 0, b"xxxxx"),
            frames.FRAME_SIZE_ERROR,
            id="settings of an odd length",
        ),
        pytest.param(
            frames.PREFACE + raw(frames.PING, 0, 0, b"x"),
            frames.FRAME_SIZE_ERROR,
            id="a short ping",
        ),
    ],
)
def test_an_abuse_ends_the_connection_with_its_code(data: bytes, code: int) -> None:
    peer = Peer()
    peer.say(data)
    assert peer.goaway == code
    assert not peer.wire.open
    assert peer.router.load == 0


@pytest.mark.parametrize("cut", [1, 3, 9, 24, 40])
def test_it_does_not_matter_how_bytes_are_cut(cut: int) -> None:
    whole, pieces = Peer(), Peer()
    data = frames.PREFACE + frames.settings({}) + PING + request(1) + PING
    whole.say(data)
    for at in range(0, len(data), cut):
        pieces.say(data[at : at + cut])
    assert bytes(pieces.wire.sent) == bytes(whole.wire.sent)


def test_streams_over_the_limit_are_refused_one_by_one() -> None:
    peer = Peer()
    peer.greet()
    for number in range(10):
        peer.say(request(number * 2 + 1))
    assert peer.wire.open
    assert peer.router.load == 0


def test_a_stream_that_closes_early_gives_its_bytes_back_to_the_connection() -> None:
    """Otherwise a few streams that nobody answers would close the connection for all others."""
    peer = Peer()
    peer.greet()
    before, sent = peer.credit, 0
    for number in range(1, 20, 2):
        peer.say(request(number, token=peer.token(f"s{number}")))
        for _ in range(6):
            peer.say(raw(frames.DATA, 0, number, b"x" * LIMITS.frame_size_max))
            sent += LIMITS.frame_size_max
        peer.say(frames.rst_stream(number, 8))
    assert peer.wire.open
    assert sent - (peer.credit - before) < LIMITS.connection_window // 4


def test_one_lease_cannot_fill_the_router_for_the_others() -> None:
    pairing: Pairing[object] = Pairing()
    now, steady = CLOCK.now(), CLOCK.steady()

    def ticket(stream: str, role: Role = Role.CLIENT, lease: str = "flood") -> Ticket:
        return Ticket(stream=stream, lease=lease, epoch=1, role=role, expires=now + STREAM_LIFETIME)

    for number in range(LEASE_WAITING_MAX):
        pairing.arrive(ticket(f"s{number}"), object(), now=now, steady=steady)
    with pytest.raises(TooManyRequests, match="this lease has too many streams"):
        pairing.arrive(ticket("one-more"), object(), now=now, steady=steady)
    assert pairing.arrive(ticket("theirs", lease="other"), object(), now=now, steady=steady) is None
    assert pairing.arrive(ticket("s0", Role.EXPORTER), object(), now=now, steady=steady) is not None
    pairing.arrive(ticket("room-again"), object(), now=now, steady=steady)

    legs = {number: object() for number in range(LEASE_USED_MAX)}
    for number, leg in legs.items():
        pairing.arrive(ticket(f"u{number}", lease="used"), leg, now=now, steady=steady)
        pairing.leave(ticket(f"u{number}", lease="used"), leg)
    with pytest.raises(TooManyRequests, match="this lease has too many streams"):
        pairing.arrive(ticket("used-up", lease="used"), object(), now=now, steady=steady)
    later = now + STREAM_LIFETIME
    after = steady + STREAM_LIFETIME
    assert pairing.arrive(ticket("later", lease="used"), object(), now=later, steady=after) is None


@pytest.mark.parametrize(
    ("step", "waits"),
    [(timedelta(minutes=40), timedelta(seconds=1)), (timedelta(hours=-1), STREAM_LIFETIME)],
    ids=["ahead and back", "back"],
)
def test_a_used_ticket_is_refused_although_the_clock_was_set(
    step: timedelta, waits: timedelta
) -> None:
    """A clock 40 minutes ahead made the router forget tickets that were valid again later."""
    pairing: Pairing[object] = Pairing()
    now, steady = CLOCK.now(), CLOCK.steady()

    def ticket(stream: str, minted: datetime) -> Ticket:
        expires = minted + STREAM_LIFETIME
        return Ticket(stream=stream, lease="l", epoch=1, role=Role.CLIENT, expires=expires)

    used = ticket("used", now)
    pairing.arrive(used, object(), now=now, steady=steady)
    now, steady = now + step + waits, steady + waits
    pairing.arrive(ticket("other", now), object(), now=now, steady=steady)
    now = min(now, CLOCK.now() + waits)
    assert now < used.expires, "its signature and dates are still accepted"
    with pytest.raises(Unauthorized, match="already used"):
        pairing.arrive(used, object(), now=now, steady=steady)


def test_a_sweep_forgives_slow_control_frames_and_finds_the_dead() -> None:
    peer = Peer()
    peer.greet()
    peer.say(request(1, token=peer.token("s1")))
    for _ in range(5):
        peer.say(PING * 40)
        peer.connection.sweep(0.0)
    assert peer.wire.open
    peer.connection.sweep(LIMITS.quiet_seconds + 1)
    assert bytes(peer.wire.sent).endswith(frames.ping(b"bullpen?"))
    peer.connection.sweep(LIMITS.dead_seconds + 1)
    assert not peer.wire.open


def test_a_connection_without_an_admitted_stream_is_closed_whatever_it_says() -> None:
    peer = Peer()
    peer.greet()
    peer.say(request(1, token="not a token") + PING)
    peer.connection.sweep(LIMITS.hello_seconds)
    assert peer.wire.open
    peer.connection.heard = LIMITS.hello_seconds + 1
    peer.connection.sweep(LIMITS.hello_seconds + 1)
    assert not peer.wire.open


def test_a_connection_is_closed_politely_when_its_last_stream_has_been_over_for_long() -> None:
    peer = Peer()
    peer.greet()
    peer.say(request(1, token=peer.token("s1")))
    peer.connection.sweep(LIMITS.idle_seconds + 1)
    assert peer.wire.open, "a stream waits"
    peer.say(frames.rst_stream(1, 8))
    peer.connection.sweep(LIMITS.hello_seconds + 1)
    assert peer.wire.open
    peer.connection.sweep(LIMITS.idle_seconds + 1)
    assert peer.goaway == frames.NO_ERROR
    assert not peer.wire.open


chunks = st.one_of(
    st.binary(max_size=60),
    st.builds(
        raw,
        st.integers(0, 12),
        st.integers(0, 255),
        st.integers(0, 9),
        st.binary(max_size=40),
    ),
    st.builds(request, st.integers(0, 9)),
)


@given(st.lists(chunks, max_size=30), st.booleans())
def test_any_bytes_are_taken_or_refused(said: list[bytes], polite: bool) -> None:
    peer = Peer()
    if polite:
        peer.greet()
    for piece in said:
        peer.say(piece)
    peer.connection.connection_lost(None)
    assert peer.router.load == 0


def test_a_token_from_before_a_restart_opens_nothing_once_its_lease_has_ended() -> None:
    """The process that issues tokens knows every open lease, and holds no ended ones."""
    pairing: Pairing[object] = Pairing()
    pairing.knows = {"open"}.__contains__
    now, steady = CLOCK.now(), CLOCK.steady()

    def ticket(lease: str) -> Ticket:
        expires = now + STREAM_LIFETIME
        return Ticket(stream="s", lease=lease, epoch=1, role=Role.CLIENT, expires=expires)

    with pytest.raises(Unauthorized, match="the lease of this stream has ended"):
        pairing.arrive(ticket("ended"), object(), now=now, steady=steady)
    assert pairing.arrive(ticket("open"), object(), now=now, steady=steady) is None
