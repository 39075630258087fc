"""How much a decision may cost: counted steps and their limit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

BUDGET = 20_000
"""Combinations tried for one claim. More of them leave the question open."""

BUDGETS_PER_PASS = 6
"""How often the budget of one claim may be used up in one pass over all of them.

Half of it is for claims whose answer was not found in the last pass.
"""

BUDGET_MIN = 50
"""Combinations that are tried for a claim when the others have used up the budget of the pass."""

LOOPS_MAX = 2_000_000
"""Iterations of expressions in one pass, by their bounds; about a third of a second."""

LOOPS_MIN = 100_000
"""What a pass may have of them when passes before it used up what there was."""

QUESTIONS_MAX = 240_000
"""Combinations tried for questions of clients; about half a second."""

QUESTIONS_MIN = 2_000
"""What one question may have of them when others used up what there was."""

PERIOD = timedelta(seconds=10)
"""In this time ``LOOPS_MAX`` and ``QUESTIONS_MAX`` become available again."""


class BudgetExhausted(Exception):
    """The answer is not known: the work that was allowed did not suffice to find it."""


@dataclass(slots=True)
class Work:
    """Counts the combinations that were tried."""

    budget: int = BUDGET
    steps: int = 0

    def spend(self) -> None:
        self.steps += 1
        if self.steps > self.budget:
            raise BudgetExhausted


class SharedBudget:
    """Work that many passes or questions may take together; it becomes available with time."""

    def __init__(self, most: int, least: int, period: timedelta) -> None:
        """``most``: in one ``period``. ``least``: what each may have of it in any case."""
        self._most, self._least, self._period = most, least, period
        self._left: float = most
        self._since: datetime | None = None
        self.available = most
        """What the one that began last may still take."""

    def begin(self, now: datetime) -> None:
        """A pass begins, of any namespace, or a question."""
        # Where the clock was set back, nothing becomes available.
        passed = max(now - (self._since or now), timedelta(0))
        self._since = now
        self._left = min(self._most, self._left + self._most * (passed / self._period))
        self.available = max(self._least, int(self._left))

    def spend(self, amount: int) -> bool:
        """Whether there is so much left, which is taken."""
        if amount > self.available:
            return False
        self.available -= amount
        self._left = max(0.0, self._left - amount)
        return True


def loop_budget() -> SharedBudget:
    """The iterations of expressions, for all passes of a process together."""
    return SharedBudget(LOOPS_MAX, LOOPS_MIN, PERIOD)


def question_budget() -> SharedBudget:
    """The combinations that are tried to answer clients what a claim would get."""
    return SharedBudget(QUESTIONS_MAX, QUESTIONS_MIN, PERIOD)


class PassBudget:
    """What is left of the combinations that one pass may try for all claims together."""

    def __init__(self, each: int, total: int | None = None) -> None:
        """``each``: the budget of one claim. ``total``: half of it for claims of either sort."""
        self._each = each
        self._half = (each * BUDGETS_PER_PASS if total is None else total) // 2
        self._left = dict.fromkeys((False, True), self._half)

    def of_claim(self, *, again: bool = False) -> int:
        """What may be tried for a claim; ``again``: if its answer was not found before."""
        return min(self._each, max(BUDGET_MIN, self._left[again]))

    def spent(self, steps: int, *, again: bool = False) -> None:
        self._left[again] -= steps

    @property
    def used(self) -> int:
        """How many were tried."""
        return sum(self._half - left for left in self._left.values())
