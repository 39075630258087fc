"""Finds provisioners: installed packages that register one under ``bullpen.provisioners``.

The entry point's name is the provisioner's name in a VirtualTargetClass; its value is a
``Plugin``. A package that cannot be loaded is reported; the other provisioners still work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from bullpen.errors import Refused
from bullpen.provisioners.base import Plugin

log = logging.getLogger("bullpen.provisioners")

GROUP = "bullpen.provisioners"


def names(*, distribution: str = "") -> tuple[str, ...]:
    """The names of all installed provisioners, or of one package's. Nothing is imported."""
    return tuple(
        sorted(
            {
                found.name
                for found in entry_points(group=GROUP)
                if not distribution or (found.dist is not None and found.dist.name == distribution)
            }
        )
    )


def load(name: str) -> Plugin:
    """The provisioner of that name. Raises ``Refused`` with the cause."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        known = ", ".join(names()) or "none"
        raise Refused(
            f"provisioner {name} is not installed; installed: {known}."
            " Install the package that provides it"
        )
    return _loaded(found[0])


def load_all() -> tuple[Plugin, ...]:
    """Every installed provisioner that can be loaded, by name."""
    return tuple(_loadable({found.name: found for found in entry_points(group=GROUP)}.items()))


def _loadable(found: Iterable[tuple[str, EntryPoint]]) -> Iterable[Plugin]:
    for name, entry in sorted(found):
        try:
            yield _loaded(entry)
        except Refused as error:
            facts = {"key": name, "cause": error.message}
            log.error("provisioner cannot be loaded", extra=facts)  # noqa: TRY400


def _loaded(entry: EntryPoint) -> Plugin:
    package = entry.dist.name if entry.dist is not None else "an unknown package"
    try:
        plugin = entry.load()
    except Exception as error:
        raise Refused(
            f"provisioner {entry.name} of {package} cannot be loaded from {entry.value}:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not isinstance(plugin, Plugin) or plugin.name != entry.name:
        raise Refused(
            f"{entry.value} of {package} is not a Plugin named {entry.name};"
            " see docs/how-to/write-a-provisioner.md"
        )
    return plugin
