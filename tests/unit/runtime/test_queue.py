"""The work queue: what is due, one worker per key, failures later and later."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bullpen.runtime.loop import WorkQueue

START = timedelta(days=3)
SECOND = timedelta(seconds=1)


def queue() -> WorkQueue[str]:
    return WorkQueue(lambda failures: SECOND * 2 ** (failures - 1))


def test_keys_come_in_the_order_they_were_added_and_each_once() -> None:
    work = queue()
    for key in ("b", "a", "b", "c"):
        work.add(key)
    assert [work.take(START) for _ in range(4)] == ["b", "a", "c", None]


def test_news_about_a_key_in_work_brings_it_back_once_it_is_done() -> None:
    work = queue()
    work.add("a")
    assert work.take(START) == "a"
    work.add("a")
    work.add("a")
    assert work.take(START) is None, "never two workers for one key"
    work.done("a")
    assert work.take(START) == "a"
    work.done("a")
    assert work.take(START) is None


def test_a_later_key_comes_at_its_time() -> None:
    work = queue()
    work.add_at("a", START + 5 * SECOND)
    assert work.next_due() == START + 5 * SECOND
    assert work.take(START + 4 * SECOND) is None
    assert work.take(START + 5 * SECOND) == "a"
    assert work.next_due() is None


def test_many_later_times_make_one_pass_at_the_earliest() -> None:
    work = queue()
    for seconds in (5, 3, 9, 3):
        work.add_at("a", START + seconds * SECOND)
    assert work.take(START + 3 * SECOND) == "a"
    work.done("a")
    assert work.take(START + 60 * SECOND) is None


def test_failures_come_back_later_each_time_until_a_success() -> None:
    work = queue()
    now = START
    work.add("a")
    for expected in (1, 2, 4):
        assert work.take(now) == "a"
        assert work.failed("a", now) == now + expected * SECOND
        assert work.take(now) is None
        now += expected * SECOND
    assert work.take(now) == "a"
    work.done("a")
    work.add("a")
    assert work.take(now) == "a"
    assert work.failed("a", now) == now + SECOND, "past failures are failures_cleared"


def test_news_do_not_wait_for_a_failure_to_be_retried() -> None:
    work = queue()
    work.add("a")
    work.take(START)
    work.failed("a", START)
    work.add("a")
    assert work.take(START) == "a"


def test_news_during_a_pass_that_fails_come_soon_but_not_at_once() -> None:
    """Its own writes, taken back, would else start the pass again and again."""
    work = queue()
    now = START
    work.add("a")
    for _ in range(5):
        assert work.take(now) == "a"
        work.add("a")
        assert work.failed("a", now) == now + SECOND, "not as late as after many failures"
        assert work.take(now) is None
        now += SECOND


def test_every_key_that_waits_for_its_time_can_be_woken_at_once() -> None:
    work = queue()
    work.add("failed")
    assert work.take(START) == "failed"
    work.failed("failed", START)
    work.add_at("later", START + 5 * SECOND)
    work.add_waiting()
    assert [work.take(START) for _ in range(3)] == ["failed", "later", None]
    assert work.next_due() is None


class Machine(RuleBasedStateMachine):
    """Whatever happens: one worker per key, and no news is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.work = queue()
        self.now = START
        self.owed: set[str] = set()
        self.soon: dict[str, timedelta] = {}
        """What came up during a pass that failed, and when it is owed."""

        self.working: set[str] = set()
        self.later: dict[str, list[int]] = {}

    keys = st.sampled_from("abc")

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.work.add(key)
        self.owed.add(key)

    @rule()
    def take(self) -> None:
        found = self.work.take(self.now)
        if found is None:
            owed = self.owed | {key for key, at in self.soon.items() if at <= self.now}
            assert owed <= self.working, "a key was owed a pass and nobody has it"
            return
        assert found not in self.working
        self.working.add(found)
        self.owed.discard(found)
        self.soon.pop(found, None)

    @precondition(lambda self: self.working)
    @rule(failed=st.booleans())
    def finish(self, failed: bool) -> None:
        key = sorted(self.working)[0]
        self.working.remove(key)
        if failed:
            when = self.work.failed(key, self.now)
            assert when > self.now
            if key in self.owed:
                self.owed.remove(key)
                self.soon[key] = when
        else:
            self.work.done(key)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @invariant()
    def time_only_goes_on(self) -> None:
        due = self.work.next_due()
        assert due is None or due >= START


TestMachine = Machine.TestCase
