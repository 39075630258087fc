"""What a log says, and which logs are refused."""

from __future__ import annotations

import pytest

from bullpen.store.base import Change, Entry, Verb
from bullpen.store.history import DEFAULT_LIMITS
from bullpen.store.ledger import Contradiction, Ledger, Row, replay

CREATED, UPDATED, DELETED = range(3)


def ledger(*rows: Row, oldest: int | None = 0) -> Ledger:
    return replay(rows, oldest=oldest, limits=DEFAULT_LIMITS)


def test_a_log_gives_the_state_and_what_came_before_each_change() -> None:
    replayed = ledger(
        (3, "a", UPDATED, b"kept"),
        (5, "a", UPDATED, b"newer"),
        (6, "b", CREATED, b"b"),
        (7, "b", DELETED, b"last"),
        oldest=4,
    )
    assert (replayed.oldest, replayed.revision) == (4, 7)
    assert replayed.scan("", "", None, None).entries == (Entry("a", b"newer", 5),)
    assert replayed.scan("", "", None, 4).entries == (Entry("a", b"kept", 3),)
    assert replayed.since(4) == [
        Change(5, "a", Verb.UPDATED, b"newer", b"kept"),
        Change(6, "b", Verb.CREATED, b"b", None),
        Change(7, "b", Verb.DELETED, b"last", b"b"),
    ]


def test_a_log_whose_newest_changes_were_compacted_remembers_its_revision() -> None:
    assert ledger((2, "a", CREATED, b""), oldest=9).revision == 9
    assert ledger(oldest=9).revision == 9


@pytest.mark.parametrize(
    ("rows", "oldest"),
    [
        pytest.param([(1, "a", UPDATED, b"")], 0, id="an update of nothing"),
        pytest.param([(1, "a", DELETED, b"")], 0, id="a deletion of nothing"),
        pytest.param(
            [(1, "a", CREATED, b""), (2, "a", CREATED, b"")], 0, id="a creation of what exists"
        ),
        pytest.param([(1, "a", 7, b"")], 0, id="a verb nobody knows"),
        pytest.param(
            [(1, "a", CREATED, b""), (2, "a", UPDATED, b"")], 2, id="a past that was forgotten"
        ),
        pytest.param([(1, "a", DELETED, b"")], 1, id="a deletion that was forgotten"),
        pytest.param([], None, id="a log that does not say where it begins"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(rows: list[Row], oldest: int | None) -> None:
    with pytest.raises(Contradiction):
        ledger(*rows, oldest=oldest)
