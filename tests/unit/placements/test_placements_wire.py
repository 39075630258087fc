"""Messages survive the wire however it cuts them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.targets.instances import ExitReason
from bullpen.placements.local.wire import (
    COMMANDS,
    EVENTS,
    FRAME_BYTES_MAX,
    ChildState,
    Command,
    Event,
    Exited,
    Frames,
    Hello,
    Noted,
    Quit,
    Registered,
    Retire,
    Spawn,
    Spawned,
    Stop,
    frame,
)

texts = st.text(max_size=20)
keys = st.tuples(texts, texts)
configs = st.builds(lambda token: msgspec.Raw(msgspec.json.encode({"token": token})), texts)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        Spawn,
        key=keys,
        token=texts,
        directory=texts,
        runtime=texts,
        config=configs,
        single_use=st.booleans(),
        retain=st.booleans(),
    ),
    st.builds(Stop, key=keys),
    st.builds(Retire, key=keys),
    st.builds(Noted, key=keys),
    st.builds(Quit),
)
exits = st.builds(Exited, key=keys, reason=st.sampled_from(ExitReason), detail=texts)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Spawned, key=keys, pid=st.integers(1, 2**22)),
    st.builds(Registered, key=keys),
    exits,
    st.builds(
        Hello,
        version=texts,
        children=st.tuples(st.builds(ChildState, key=keys, registered=st.booleans())),
        ended=st.tuples(exits),
    ),
)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(st.lists(commands, max_size=5), st.integers(1, 70))
def test_commands_arrive_in_order_whatever_the_pieces(sent: list[Command], size: int) -> None:
    frames = Frames(COMMANDS)
    pieces = cut(b"".join(map(frame, sent)), size)

    assert [message for piece in pieces for message in frames.feed(piece)] == sent


@given(st.lists(events, max_size=5), st.integers(1, 70))
def test_events_arrive_in_order_whatever_the_pieces(sent: list[Event], size: int) -> None:
    frames = Frames(EVENTS)
    pieces = cut(b"".join(map(frame, sent)), size)

    assert [message for piece in pieces for message in frames.feed(piece)] == sent


def test_a_length_over_the_limit_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        list(Frames(COMMANDS).feed(FRAME_BYTES_MAX.to_bytes(4)))


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(AssertionError, match="bytes"):
        frame(Registered(key=("n", "x" * FRAME_BYTES_MAX)))
