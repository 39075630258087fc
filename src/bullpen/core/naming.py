"""What the members of a pool are called: named before they exist, so made once at most.

Members are numbered on and on, also across restarts of the service, so that a name in
a log, a lease or a kept disk means one member and no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import count, islice

PREFIX_LENGTH_MAX = 200
"""Leaves room for a number, and for what others put behind an exporter's name."""


def prefix(name: str) -> str:
    """What the names of a set's members begin with."""
    if len(name) <= PREFIX_LENGTH_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: PREFIX_LENGTH_MAX - 11].rstrip('-.')}-{digest}"


def new_names(name: str, wanted: int, *, first: int, taken: Iterable[str]) -> tuple[str, ...]:
    """So many names that nobody has, numbered from ``first`` on."""
    known, stem = frozenset(taken), prefix(name)
    candidates = (f"{stem}-{number}" for number in count(first))
    return tuple(islice((made for made in candidates if made not in known), max(0, wanted)))


def next_number(name: str, created: int, members: Iterable[str]) -> int:
    """The number after the last, also after members whose number was never written down."""
    return max(created, 1 + max((number(name, member) for member in members), default=-1))


def number(name: str, member: str) -> int:
    """The number in a member's name; -1 if the name is none of ours."""
    tail = member.removeprefix(f"{prefix(name)}-")
    return int(tail) if tail != member and tail.isascii() and tail.isdigit() else -1
