"""Several targets behind one exporter: each as the recipe describes it, below its own name. Pure.

For a profile of one target, every function here is what the recipe says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from bullpen.api.paths import Document
from bullpen.core.targets.profiles import each_target
from bullpen.errors import Cause
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Needs, Profile, Recipe, Site

N = TypeVar("N", int, float)


def causes(recipe: Recipe, made: Profile) -> tuple[Cause, ...]:
    """The errors in all targets, by path."""
    if made.targets is None:
        return recipe.check(made.parameters, made.drivers)
    return tuple(_causes(recipe, made))


def refused(name: str, made: Profile) -> tuple[Cause, ...]:
    """The error for provisioners that make one target for each exporter."""
    if made.targets is None:
        return ()
    return (Cause(field="targets", message=f"Forbidden: {name} has one target per exporter"),)


def needs(recipe: Recipe, made: Profile) -> Needs:
    """What all targets need together."""
    if made.targets is None:
        return recipe.needs(made)
    every = [recipe.needs(target) for target in each_target(made)]
    return replace(
        every[0],
        memory_bytes=sum(each.memory_bytes for each in every),
        cpus=sum(each.cpus for each in every),
        artifacts=tuple(dict.fromkeys(item for each in every for item in each.artifacts)),
        programs=tuple(dict.fromkeys(item for each in every for item in each.programs)),
        # Only guests of the host's own architecture can use KVM.
        kvm_for=next((each.kvm_for for each in every if each.kvm_for), ""),
        memory_bytes_max=sum(_limits(each.memory_bytes_max for each in every)),
        cpus_max=sum(_limits(each.cpus_max for each in every)),
        file_bytes_max=max(_limits(each.file_bytes_max for each in every)),
    )


def export(recipe: Recipe, made: Profile, site: Site) -> Document:
    """The ``export`` section: the targets by name, and the drivers they share."""
    if made.targets is None:
        return dict(recipe.export(made, site))
    exported = (
        {"children": _below(target.name, recipe.export(each, site))}
        for target, each in zip(made.targets, each_target(made), strict=True)
    )
    names = (target.name for target in made.targets)
    return {**dict(zip(names, exported, strict=True)), **parameters.export_of(made.drivers)}


def _below(name: str, entries: object) -> Document:
    """Drivers of a target, in which a reference begins at the root as Jumpstarter reads it."""
    assert isinstance(entries, dict)
    return {
        key: {"ref": f"{name}.{entry['ref']}"} if "ref" in entry else entry
        for key, entry in entries.items()
    }


def _limits(given: Iterable[N]) -> list[N]:
    """The limits of all targets; zeros, which mean no limit, if one of them has none."""
    limits = list(given)
    return limits if all(limits) else [limit * 0 for limit in limits]


def _causes(recipe: Recipe, made: Profile) -> Iterator[Cause]:
    names = frozenset(target.name for target in made.targets or ())
    for index, each in enumerate(each_target(made)):
        yield from _at(f"targets[{index}]", recipe.check(each.parameters, each.drivers))
    shared = frozenset(driver.name for driver in made.drivers)
    yield from parameters.reference_causes(made.drivers, names | shared)
    for index, driver in enumerate(made.drivers):
        if driver.name in names:
            message = f"Invalid value: {driver.name!r} is a target"
            yield Cause(field=f"drivers[{index}].name", message=message)


def _at(path: str, found: Iterable[Cause]) -> Iterator[Cause]:
    for cause in found:
        yield replace(cause, field=f"{path}.{cause.field}")
