"""The client interface: what both homes offer to controllers and services.

Values in, values out. Every write that changes an object carries the revision it
was decided on and fails with ``Conflict`` if the object moved on; there are no
transactions, because a Kubernetes cluster has none, only an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bullpen.api.fields import Kind
from bullpen.api.meta import ObjectMeta

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)


@dataclass(frozen=True, slots=True)
class Listing(Generic[K]):
    """All objects of a kind as they were at one revision."""

    items: tuple[K, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Seen(Generic[K]):
    """One change. ``gone`` means deleted; ``value`` is then the last state."""

    value: K
    gone: bool


def meta_of(value: Kind) -> ObjectMeta:
    """The metadata every object has."""
    meta = value.metadata  # type: ignore[attr-defined]
    assert isinstance(meta, ObjectMeta)
    return meta


Foresight = Callable[[str, str, K | None], None]
"""Told a namespace, a name, and the state that the next write builds on; None for none."""


class Feed(Protocol[K]):
    """Changes of one kind, in order, each once."""

    async def next(self) -> Iterable[Seen[K]]:
        """Wait for changes. Raises ``Gone`` when it must be started again from a list."""

    def close(self) -> None: ...


class Objects(Protocol):
    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        """Raises ``NotFound``."""

    async def list(self, kind: type[K]) -> Listing[K]:
        """Every object of the kind, in all namespaces."""

    def watch(self, kind: type[K], *, since: int) -> Feed[K]:
        """Changes after a revision that ``list`` returned. Raises ``Gone``."""

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        """Hear of each write as soon as all that is written from now on comes after it.

        That may be before anybody can read it, and whatever is written because of it is
        lost if it is; then the state that stands is heard. A home that knows of a write
        only when it can be read says nothing here.
        """

    async def create(self, value: K) -> K:
        """Raises ``AlreadyExists``."""

    async def apply(self, value: K) -> K:
        """Have the object say this, made or mended; for what is wholly ours.

        Server-side apply: nothing is compared, fields that others set stay theirs.
        """

    async def update(self, value: K) -> K:
        """Write everything but status; compares ``metadata.resource_version``."""

    async def update_status(self, value: K) -> K:
        """Write status only; compares ``metadata.resource_version``."""

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        """Write the status of both: the second only if the first was written.

        After a crash the first may be there alone, never the second. A home that keeps
        its writes in order makes one commit of them.
        """

    async def delete(self, value: K) -> None:
        """Remove exactly this object at this revision; an absent one is a success."""
