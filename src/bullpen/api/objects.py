"""The client interface that both homes offer to controllers and services.

Values in, values out. Every write that changes an object carries the revision it was
decided on and fails with ``Conflict`` if the object has changed since. There are no
transactions, because a Kubernetes cluster has none, only an order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bullpen.api.fields import Kind
from bullpen.api.meta import ObjectMeta

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)


@dataclass(frozen=True, slots=True)
class Listing(Generic[K]):
    """All objects of a kind at one revision."""

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
"""Called with a namespace, a name, and the state the next write builds on; None for none."""


class Feed(Protocol[K]):
    """Changes of one kind, in order, each exactly once."""

    async def next(self) -> Iterable[Seen[K]]:
        """Wait for changes. Raises ``Gone`` when it must be restarted from a list."""

    def close(self) -> None: ...


class Objects(Protocol):
    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        """Raises ``NotFound``."""

    async def list(self, kind: type[K]) -> Listing[K]:
        """Every object of the kind that ``Kind.selected`` selects, in all namespaces."""

    def watch(self, kind: type[K], *, since: int) -> Feed[K]:
        """Changes of those objects after a revision that ``list`` returned. Raises ``Gone``.

        An object that is no longer selected is reported as gone.
        """

    def pages(
        self, kind: type[K], *, namespace: str = "", labels: str = ""
    ) -> AsyncGenerator[tuple[K, ...], None]:
        """All objects with these labels, selected or not, a bounded number at a time.

        For kinds with more objects than a process should hold. ``namespace`` is empty for all.
        Objects that change meanwhile may be missing. Raises ``Gone`` if it takes too long. Readers
        close it (``contextlib.aclosing``), because they may be cancelled between two pages.
        """

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        """Call ``listener`` for each write as soon as all later writes are ordered after it.

        That may be before the write can be read. If it is lost, so is everything written because of
        it, and ``listener`` is called with the state that holds then. A home that learns of a write
        only when it can be read never calls it.
        """

    async def create(self, value: K) -> K:
        """Raises ``AlreadyExists``."""

    async def apply(self, value: K) -> K:
        """Create or update the object with these fields; for objects that are wholly ours.

        Server-side apply: no version is compared, fields set by others stay theirs.
        """

    async def update(self, value: K) -> K:
        """Write everything but status; compares ``metadata.resource_version``."""

    async def update_status(self, value: K) -> K:
        """Write status only; compares ``metadata.resource_version``."""

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        """Write the status of both: the second only if the first was written.

        After a crash the first may have been written alone, never the second. A home that keeps its
        writes in order makes one commit of them.
        """

    async def delete(self, value: K) -> None:
        """Delete exactly this object at this revision; an absent object is a success."""
