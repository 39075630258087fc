"""Which routers there are and which one the next stream should use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bullpen.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Router:
    """A router that can take streams."""

    endpoint: str
    load: Callable[[], int]
    """Streams it carries now."""


class Routers:
    """The known routers; streams go to the one that carries the fewest."""

    def __init__(self) -> None:
        self._known: dict[str, Router] = {}

    def add(self, router: Router) -> None:
        self._known[router.endpoint] = router

    def remove(self, endpoint: str) -> None:
        self._known.pop(endpoint, None)

    def choose(self) -> str:
        if not self._known:
            raise Unavailable("no router is running; try again shortly")
        return min(self._known.values(), key=lambda r: (r.load(), r.endpoint)).endpoint
