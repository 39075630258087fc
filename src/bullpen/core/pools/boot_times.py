"""How long members of a pool take to boot: the recent boots, and what they predict.

An estimate is a quantile of the recent boots. Its error is measured on the same boots: each is
compared with the estimate that the boots before it gave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from bullpen.api.kinds import exporterset
from bullpen.api.kinds.exporterset import ExporterSetStatus
from bullpen.kit.quantiles import quantile

BOOTS_MAX = 32
"""Boots that count; older ones are forgotten."""

BOOTS_FEW = 5
"""With fewer boots than this nothing is known about slow ones."""

ASSUMED = timedelta(seconds=10)
"""The assumed boot time until one has been measured."""

MARGIN = timedelta(seconds=2)
_STEP = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class BootTimes:
    recent: tuple[timedelta, ...] = ()
    """The oldest first."""

    def measured(self, boots: Iterable[timedelta]) -> BootTimes:
        """These and further boots, to a tenth of a second.

        A negative duration was measured across a clock that was set back.
        """
        new = (round(boot / _STEP) * _STEP for boot in boots if boot >= timedelta(0))
        return BootTimes((*self.recent, *new)[-BOOTS_MAX:])

    @property
    def typical(self) -> timedelta | None:
        """Half of the boots took no longer; None if none was measured."""
        return quantile(self.recent, 0.5)

    @property
    def slow(self) -> timedelta | None:
        """Nine of ten boots took no longer; None if too few were measured."""
        return None if len(self.recent) < BOOTS_FEW else quantile(self.recent, 0.9)

    @property
    def error(self) -> timedelta | None:
        """By how much half of the estimates were wrong at most; None without any."""
        errors = [
            abs(boot - (quantile(self.recent[:number], 0.5) or ASSUMED))
            for number, boot in enumerate(self.recent)
            if number
        ]
        return quantile(errors, 0.5)

    @property
    def lead(self) -> timedelta:
        """How long before it is needed a member must start booting."""
        expected = self.slow or (self.typical or ASSUMED) * 1.5
        return expected + MARGIN


UNMEASURED = BootTimes()


def of(status: ExporterSetStatus) -> BootTimes:
    """The boot times that a status records."""
    if status.boot_times is not None:
        return BootTimes(status.boot_times.recent[-BOOTS_MAX:])
    # Recorded by a release that kept an average only.
    return BootTimes(() if status.typical_boot is None else (status.typical_boot,))


def on_record(boots: BootTimes) -> exporterset.BootTimes | None:
    """The same for a status; None if nothing was measured."""
    if not boots.recent:
        return None
    return exporterset.BootTimes(recent=boots.recent, slow=boots.slow, estimate_error=boots.error)
