"""The drivers of targets that consist of one driver: the target itself, and what refers to it."""

from __future__ import annotations

from collections.abc import Iterator

from bullpen.api.exporter_template import Driver
from bullpen.api.paths import Document
from bullpen.errors import Cause
from bullpen.provisioners import parameters

TARGET_NAME = "target"

RESERVED_NAMES = frozenset({"power", "console", "flasher"})
"""Children that every such target has."""


def with_target(drivers: tuple[Driver, ...], kind: str) -> tuple[Driver, ...]:
    """The drivers, including the target; without any, also its power and its console."""
    if any(driver.type == kind for driver in drivers):
        return drivers
    target = Driver(name=TARGET_NAME, type=kind)
    if drivers:
        return (target, *drivers)
    return (
        target,
        Driver(name="power", ref=f"{TARGET_NAME}.power"),
        Driver(name="serial", ref=f"{TARGET_NAME}.console"),
    )


def exported(drivers: tuple[Driver, ...], kind: str, config: Document) -> Document:
    """The ``export`` section, in which ``config`` completes that of the target."""
    return parameters.export_of(
        tuple(
            Driver(name=driver.name, type=kind, config={**config, **driver.config})
            if driver.type == kind
            else driver
            for driver in with_target(drivers, kind)
        )
    )


def causes(drivers: tuple[Driver, ...], kind: str) -> Iterator[Cause]:
    """References to missing drivers, and another driver with the target's name."""
    names = frozenset(driver.name for driver in with_target(drivers, kind))
    yield from parameters.reference_causes(drivers, names)
    if any(driver.type == kind for driver in drivers):
        return
    for index, driver in enumerate(drivers):
        if driver.name == TARGET_NAME:
            message = f"Invalid value: {TARGET_NAME!r} is the target itself"
            yield Cause(field=f"drivers[{index}].name", message=message)
