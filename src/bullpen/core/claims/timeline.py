"""What is left of an inventory at the times at which its uses end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime

from bullpen.core.claims import bitsets
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger


class Timeline:
    """What is left of an inventory at the ends of its uses."""

    def __init__(self, index: InventoryIndex, uses: Sequence[Use]) -> None:
        self._index, self._uses = index, uses
        self.ends = sorted({use.until for use in uses if use.until is not None})
        numbers: dict[datetime | None, list[int]] = {}
        for use in uses:
            number = index.numbers.get(use.device)
            if number is not None:
                numbers.setdefault(use.until, []).append(number)
        self._plain = not any(use.share is not None for use in uses) and not (
            index.drawing & bitsets.of(n for found in numbers.values() for n in found)
        )
        busy = bitsets.of(numbers.get(None, ()))
        self._busy = [busy]
        """The devices in use after the last end, the last but one, and so on."""

        for end in reversed(self.ends):
            busy |= bitsets.of(numbers.get(end, ()))
            self._busy.append(busy)

    def ledger_at(self, moment: datetime) -> Ledger:
        if not self._plain:
            left = (use for use in self._uses if use.until is None or use.until > moment)
            return Ledger(self._index, left)
        ledger = Ledger(self._index)
        ended = bisect_right(self.ends, moment)
        ledger.unused &= ~self._busy[len(self.ends) - ended]
        return ledger
