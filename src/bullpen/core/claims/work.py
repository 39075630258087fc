"""How much a decision may cost: counted steps and their limit."""

from __future__ import annotations

from dataclasses import dataclass

BUDGET = 20_000
"""Combinations tried for one claim. More of them leave the question open."""


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
