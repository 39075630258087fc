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

LOOPS_PERIOD = timedelta(seconds=10)
"""In this time ``LOOPS_MAX`` iterations become available again, for all passes together."""


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


class LoopBudget:
    """The iterations of expressions that all passes of a process may take together."""

    def __init__(self) -> None:
        self._left: float = LOOPS_MAX
        self._since: datetime | None = None
        self._pass = LOOPS_MAX

    def begin(self, now: datetime) -> None:
        """A pass begins, of any namespace."""
        # Where the clock was set back, nothing becomes available.
        passed = max(now - (self._since or now), timedelta(0))
        self._since = now
        self._left = min(LOOPS_MAX, self._left + LOOPS_MAX * (passed / LOOPS_PERIOD))
        self._pass = max(LOOPS_MIN, int(self._left))

    def spend(self, iterations: int) -> bool:
        """Whether the pass may take so many more."""
        if iterations > self._pass:
            return False
        self._pass -= iterations
        self._left = max(0.0, self._left - iterations)
        return True


class PassBudget:
    """What is left of the combinations that one pass may try for all claims together."""

    def __init__(self, each: int) -> None:
        """``each``: the budget of one claim."""
        self._each = each
        self._left = dict.fromkeys((False, True), each * BUDGETS_PER_PASS // 2)

    def of_claim(self, *, again: bool) -> int:
        """What may be tried for a claim; ``again``: if its answer was not found before."""
        return min(self._each, max(BUDGET_MIN, self._left[again]))

    def spent(self, steps: int, *, again: bool) -> None:
        self._left[again] -= steps
