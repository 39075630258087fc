"""What an exporter is told about its leases, for every order of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.exporters.conversation import (
    NEW,
    BecameAvailable,
    Conversation,
    Listened,
    Looked,
    Notice,
    Step,
    step,
)

NONE = Notice()
ONE = Notice(lease="one", client="alice", uid="u1")
TWO = Notice(lease="two", client="bob", uid="u2")
AGAIN = Notice(lease="one", client="carol", uid="u3")
ASSIGNING = Notice(uid="u2")
HOOK = timedelta(seconds=150)


def look(
    current: Notice,
    said: Notice | None = None,
    *,
    patience: timedelta = timedelta(0),
    at: float = 0,
    doing: str = "",
) -> Looked:
    return Looked(current=current, said=said, doing=doing, patience=patience, at=at)


def after(*events: Looked | Listened | BecameAvailable) -> Step:
    state, found = NEW, Step(state=NEW)
    for event in events:
        found = step(state, event)
        state = found.state
    return found


@pytest.mark.parametrize(
    ("events", "notice"),
    [
        pytest.param([look(NONE)], NONE, id="a stream begins with what is so"),
        pytest.param([look(NONE), look(NONE, NONE)], None, id="which is said once"),
        pytest.param([look(NONE), look(ONE, NONE)], ONE, id="a lease is told"),
        pytest.param([look(ONE), look(TWO, ONE)], NONE, id="between two leases there is none"),
        pytest.param([look(ONE), look(TWO, ONE), look(TWO, NONE)], TWO, id="then the next"),
        pytest.param([look(ONE), look(AGAIN, ONE)], NONE, id="also if it has the same name"),
        pytest.param([look(ONE), look(ONE)], ONE, id="a new stream repeats the lease"),
        pytest.param([look(ONE), look(TWO)], NONE, id="an end during a reconnect is told"),
        pytest.param([look(NONE), look(ASSIGNING, NONE)], None, id="an assignment is awaited"),
        pytest.param(
            [look(ONE), look(NONE, ONE, patience=HOOK, doing="hook")],
            None,
            id="an exporter in a hook is not interrupted",
        ),
        pytest.param(
            [
                look(ONE),
                look(NONE, ONE, patience=HOOK, doing="hook"),
                look(NONE, ONE, patience=HOOK, doing="hook", at=150),
            ],
            NONE,
            id="but not waited for for ever",
        ),
        pytest.param(
            [
                look(ONE),
                look(NONE, ONE, patience=HOOK, doing="hook"),
                look(NONE, ONE, patience=HOOK, doing="another", at=100),
                look(NONE, ONE, patience=HOOK, doing="another", at=200),
            ],
            None,
            id="each thing it does has its own time",
        ),
        pytest.param(
            [look(ONE), look(NONE, patience=HOOK, doing="hook")],
            ONE,
            id="a stream that begins meanwhile repeats the lease",
        ),
        pytest.param(
            [look(TWO), Listened(lease="one", uid="u1"), look(TWO, TWO)],
            NONE,
            id="an exporter that holds an older lease hears of its end",
        ),
        pytest.param(
            [Listened(lease="one", uid="u1"), look(TWO)],
            NONE,
            id="also if it listened before it was told anything",
        ),
        pytest.param(
            [Listened(lease="two", uid=""), look(ASSIGNING)],
            None,
            id="a lease that no view knows yet may be the one being assigned",
        ),
        pytest.param([Listened(lease="two", uid=""), look(TWO)], TWO, id="and goes on if it is"),
        pytest.param(
            [Listened(lease="one", uid="u1"), BecameAvailable(), look(TWO)],
            TWO,
            id="an exporter that says it is available has no lease",
        ),
    ],
)
def test_notice(events: list[Looked | Listened | BecameAvailable], notice: Notice | None) -> None:
    assert after(*events).notice == notice


def test_streams_look_again_when_a_hook_has_had_its_time() -> None:
    begun = after(look(ONE), look(NONE, ONE, patience=HOOK, doing="hook"))
    assert begun.look_after == HOOK
    again = step(begun.state, look(NONE, ONE, patience=HOOK, doing="hook", at=1))
    assert again.look_after is None, "one alarm is enough"


def test_streams_look_again_when_an_exporter_holds_something_else() -> None:
    assert after(look(TWO), Listened(lease="one", uid="u1")).look_again
    assert not after(look(TWO), Listened(lease="two", uid="u2")).look_again


@dataclass
class Exporter:
    """An exporter that keeps hearing, and drops its stream now and then."""

    state: Conversation = NEW
    said: Notice | None = None
    heard: list[Notice] = field(default_factory=list)

    def look(self, current: Notice, patience: timedelta = timedelta(0), at: float = 0) -> None:
        event = look(current, self.said, patience=patience, at=at, doing="x")
        found = step(self.state, event)
        self.state = found.state
        if found.notice is not None:
            self.said = found.notice
            self.heard.append(found.notice)


_LEASES = st.sampled_from((NONE, ONE, TWO, AGAIN, ASSIGNING))


@given(
    st.lists(st.tuples(_LEASES, st.booleans(), st.sampled_from((timedelta(0), HOOK))), max_size=20),
    _LEASES.filter(lambda notice: notice.settled),
)
def test_an_exporter_hears_of_every_end_and_of_no_false_one(
    changes: list[tuple[Notice, bool, timedelta]], last: Notice
) -> None:
    exporter = Exporter()
    for current, reconnects, patience in changes:
        if reconnects:
            exporter.said = None
        before = len(exporter.heard)
        for _ in range(3):
            exporter.look(current, patience)
        if current.leased and NONE in exporter.heard[before + 1 :]:
            raise AssertionError("the end of a lease that goes on was told")
    for _ in range(3):
        exporter.look(last, at=1_000)
    assert exporter.heard[-1] == last, "what is so in the end has been told"
    for one, two in zip(exporter.heard, exporter.heard[1:], strict=False):
        different = one.leased and two.leased and one.uid != two.uid
        assert not different, "between two leases there was none"


@pytest.mark.parametrize(
    ("events", "current", "doubts"),
    [
        pytest.param([], NONE, True, id="nothing was told here, so a lease may have been missed"),
        pytest.param([], ONE, False, id="a lease is known"),
        pytest.param([look(NONE)], NONE, False, id="told here that it has none"),
        pytest.param([look(ONE)], ONE, False, id="told of the same lease"),
        pytest.param([look(ONE)], NONE, True, id="the end of a lease is not believed at once"),
        pytest.param(
            [Listened(lease="one", uid="")], NONE, True, id="it listens on a lease not seen yet"
        ),
        pytest.param(
            [Listened(lease="two", uid="")],
            ONE,
            True,
            id="it listens on a later lease not seen yet",
        ),
        pytest.param(
            [Listened(lease="one", uid="")], ONE, False, id="it listens on the lease that is known"
        ),
    ],
)
def test_what_is_read_anew_before_a_new_stream_says_it(
    events: list[Looked | Listened | BecameAvailable], current: Notice, doubts: bool
) -> None:
    assert after(*events).state.doubts(current) is doubts
