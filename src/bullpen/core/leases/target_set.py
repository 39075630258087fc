"""Different exporters for the places of one request: bipartite matching.

``choices`` lists for every place the exporters that would do, best first. They may be named
by anything that can be hashed. The work grows with
the number of places and the length of the lists, so callers list no more exporters for a
place than there are places: with so many there is always one that no other place takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

Choices = Sequence[Sequence[K]]


def complete_set(choices: Choices[K]) -> tuple[K, ...] | None:
    """An exporter for every place, none twice; None if that is impossible.

    The first place gets its best choice with which the set can still be completed, then the
    second place gets its best choice, and so on.
    """
    places = largest_matching(choices)
    if len(places) < len(choices):
        return None
    for place in range(len(choices)):
        places = _improved(choices, places, place)
    found = {place: exporter for exporter, place in places.items()}
    return tuple(found[place] for place in range(len(choices)))


def largest_matching(choices: Choices[K]) -> dict[K, int]:
    """Exporters and the places they fill, for as many places as possible."""
    places: dict[K, int] = {}
    for place in range(len(choices)):
        _fill(choices, places, place, set())
    return places


def _improved(choices: Choices[K], places: dict[K, int], place: int) -> dict[K, int]:
    """The complete set in which ``place`` has its best choice; earlier places keep theirs."""
    settled = {exporter for exporter, other in places.items() if other < place}
    for exporter in choices[place]:
        if exporter in settled:
            continue
        changed = {name: other for name, other in places.items() if other != place}
        displaced = changed.get(exporter)
        changed[exporter] = place
        if displaced is None or _fill(choices, changed, displaced, settled | {exporter}):
            return changed
    raise AssertionError("the current choice of a place completes the set")


def _fill(choices: Choices[K], places: dict[K, int], place: int, tried: set[K]) -> bool:
    """Fill ``place``, moving other places to other exporters if needed; False if impossible.

    Exporters in ``tried`` are not used; those that were considered are added to it.
    """
    for exporter in choices[place]:
        if exporter not in places and exporter not in tried:
            places[exporter] = place
            return True
    for exporter in choices[place]:
        if exporter not in tried:
            tried.add(exporter)
            if _fill(choices, places, places[exporter], tried):
                places[exporter] = place
                return True
    return False
