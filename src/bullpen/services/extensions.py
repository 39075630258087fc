"""Refuses to extend leases past what others have booked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from bullpen.controllers.labs import Labs
from bullpen.core.leases import bookings
from bullpen.core.leases.requests import Lab, Supply
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.services.dialing import Precondition


class Extensions:
    def __init__(
        self, labs: Labs, supplies: Callable[[str], tuple[Supply, ...]], *, clock: Clock
    ) -> None:
        """``supplies``: what the pools of a namespace could create for bookings."""
        self._labs = labs
        self._supplies = supplies
        self._clock = clock

    def check(self, namespace: str, until: Mapping[str, datetime | None]) -> None:
        """Raise ``Precondition`` if a booking would lose its exporter.

        ``until``: the new ends of leases that have exporters, by name; None for no end.
        """
        index = self._labs.of(namespace)
        scheduled = index.scheduled(self._clock.now())
        if scheduled is None:
            return
        lab = Lab(
            offers=index.offers,
            requests=(),
            policies=self._labs.policies(namespace),
            supplies=self._supplies(namespace),
            bookings=scheduled,
        )
        lost = bookings.hindered(lab, until)
        if lost is not None:
            begin = times.text(lost.fence.begin)
            raise Precondition(
                f"exporter {lost.exporter} is booked {lost.fence} by {lost.request.client};"
                f" the end must not be later than {begin}"
            )
