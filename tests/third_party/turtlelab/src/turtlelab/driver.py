"""A turtle as a Jumpstarter driver: it can be switched on and off, slowly."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from jumpstarter.driver import Driver, export
from jumpstarter_driver_power.common import PowerReading
from jumpstarter_driver_power.driver import PowerInterface


@dataclass(kw_only=True)
class Turtle(PowerInterface, Driver):
    """Walks while it is switched on."""

    speed: int = 1

    @export
    async def on(self) -> None:
        self.logger.info("the turtle walks %d metres in an hour", self.speed)

    @export
    async def off(self) -> None:
        self.logger.info("the turtle rests")

    @export
    async def read(self) -> AsyncGenerator[PowerReading, None]:
        yield PowerReading(voltage=0.0, current=float(self.speed))
