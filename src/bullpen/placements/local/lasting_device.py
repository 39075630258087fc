"""The drivers of a lasting target: one tree for the life of its exporter.

Jumpstarter makes the drivers anew for every lease and closes them after it. Here every lease
gets the same ones, so the machine and what it did stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from bullpen.drivers.target_files import AttachedDisk


class LastingDevice:
    """Stands in for the exporter's device factory."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._device: Any = None
        self._close: Callable[[], None] = lambda: None
        self.code = 0
        """How the machine ended last: its exit code."""

    def __call__(self) -> Any:
        """The drivers; neither the begin nor the end of a session changes them."""
        if self._device is None:
            self._device = self._factory()
            self._close = self._device.close
            self._device.close = self._device.reset = _nothing
        return self._device

    async def start(self, on_ended: Callable[[], None]) -> None:
        """Switch the machines on; ``on_ended`` is called on the event loop when one ends."""
        loop = asyncio.get_running_loop()

        def ended(code: int) -> None:
            self.code = code
            loop.call_soon_threadsafe(on_ended)

        for machine in self._machines():
            await machine.start_lasting(ended)

    async def change_disks(self, disks: tuple[AttachedDisk, ...]) -> None:
        """Give running machines these disks; raises what a driver raises if it cannot."""
        for machine in self._machines():
            if not hasattr(machine, "change_disks"):
                raise ValueError(f"{type(machine).__name__} takes its disks only when it starts")
            await machine.change_disks(disks)

    async def paused(self) -> str:
        """Why a machine is paused, empty if none is; the drivers let it try again each time."""
        for machine in self._machines():
            if hasattr(machine, "paused") and (why := await machine.paused()):
                return str(why)
        return ""

    def has_ended(self) -> bool:
        """Whether a machine that should be on is off."""
        return any(
            machine.machine_site.lasting and not machine.is_on() for machine in self._machines()
        )

    def ended(self) -> str:
        """How the machine ended, for people."""
        if self.code:
            return f"the machine ended with code {self.code}"
        return "the machine was shut down or switched off"

    def close(self) -> None:
        """Close the drivers, at the end of the exporter."""
        self._close()

    def _machines(self) -> Iterator[Any]:
        """The drivers that have a machine of their own."""
        for _, _, _, driver in self().enumerate():
            if hasattr(driver, "start_lasting"):
                yield driver


def _nothing() -> None:
    """What a session may do to a lasting device."""
