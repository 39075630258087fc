"""An exporter's config: reading one, and its ``export`` section from a template's drivers."""

from __future__ import annotations

from collections.abc import Iterator

from bullpen.api import yaml
from bullpen.api.document import Document, decode
from bullpen.api.exporterset import Driver
from bullpen.errors import Cause


def read_config(text: str) -> Document:
    """The config in ``text``, which is YAML.

    JSON is YAML too and is read a hundred times faster; whoever starts hundreds of
    exporters writes it so.
    """
    if text.startswith("{"):
        return decode(text.encode())
    return dict(yaml.load(text))


def export_of(drivers: tuple[Driver, ...]) -> Document:
    """Each driver under its name, as Jumpstarter reads it."""
    return {driver.name: entry(driver) for driver in drivers}


def entry(driver: Driver) -> Document:
    if driver.ref:
        return {"ref": driver.ref}
    return {"type": driver.type, "config": dict(driver.config)}


def reference_causes(
    drivers: tuple[Driver, ...], names: frozenset[str], *, path: str = "drivers"
) -> Iterator[Cause]:
    """References to what is not exported. Deeper parts are the driver's own business."""
    for index, driver in enumerate(drivers):
        head = driver.ref.partition(".")[0]
        if driver.ref and head not in names:
            known = ", ".join(sorted(names)) or "none"
            message = f"Invalid value: {head!r} is no driver here; there are: {known}"
            yield Cause(field=f"{path}[{index}].ref", message=message)
