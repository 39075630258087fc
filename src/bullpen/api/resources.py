"""The table of resources: what every module of ``api.kinds`` says about its kinds.

A module of a kind has ``RESOURCES``; nothing else has to name the kind.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator

from bullpen.api import kinds
from bullpen.api.fields import Kind
from bullpen.api.resource import Resource

GROUPS = (
    "jumpstarter.dev",
    "virtualtarget.jumpstarter.dev",
    "device.jumpstarter.dev",
    "",
    "coordination.k8s.io",
    "rbac.authorization.k8s.io",
    "apiextensions.k8s.io",
)
"""Their order: kubectl takes a name that two groups have from the first."""


class Resources:
    """All served resources, in a stable order."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._all = tuple(resources)
        self._by_plural = {(item.group, item.version, item.plural): item for item in self._all}
        self._by_kind = {(item.api_version, item.kind): item for item in self._all}
        self._by_value: dict[object, Resource] = {item.value: item for item in self._all}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_plural.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        return self._by_kind.get((api_version, kind))

    def of(self, value: type[Kind]) -> Resource:
        """The resource whose objects ``value`` describes."""
        return self._by_value[value]

    def group_versions(self) -> tuple[tuple[str, str], ...]:
        """Each (group, version) once, in the order of the table."""
        return tuple(dict.fromkeys((item.group, item.version) for item in self._all))


def _declared() -> Iterator[Resource]:
    for found in pkgutil.iter_modules(kinds.__path__):
        yield from importlib.import_module(f"{kinds.__name__}.{found.name}").RESOURCES


def _turn(resource: Resource) -> tuple[int, str]:
    return GROUPS.index(resource.group), resource.plural


RESOURCES = Resources(sorted(_declared(), key=_turn))
"""Every resource this service serves."""
