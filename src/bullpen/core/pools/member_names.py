"""Names of pool members: chosen before the member exists, so it is created at most once.

Below a ceiling there are as many names as there may be members, and a name is reused when
it is free. So several writers, however little they know of each other, cannot create more
members than that: one of them finds the name taken. A member created before the ceiling was
lowered, whose number is beyond it, keeps one of the names from being used. Names rotate, so
that the name released last is reused last. Without a ceiling, the numbers keep increasing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import count, islice

PREFIX_LENGTH_MAX = 200
"""Leaves room for a number, and for suffixes that others append to an exporter's name."""


def prefix(name: str) -> str:
    """The prefix of the names of a set's members."""
    if len(name) <= PREFIX_LENGTH_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: PREFIX_LENGTH_MAX - 11].rstrip('-.')}-{digest}"


def new_names(
    name: str,
    wanted: int,
    *,
    ceiling: int | None,
    created: int,
    members: Iterable[str],
    taken: Iterable[str] = (),
) -> tuple[str, ...]:
    """Up to so many unused names, following the ``created`` ones used so far.

    Besides the pool's ``members``, other exporters may have ``taken`` some names.
    """
    member_index, stem = frozenset(members), prefix(name)
    known = member_index.union(taken)
    if ceiling is None:
        free = (f"{stem}-{number}" for number in count(_next_number(name, created, known)))
        return tuple(islice(free, max(0, wanted)))
    beyond = sum(not _is_place(name, member, ceiling) for member in member_index)
    # Always the last names, so that two processes with the same view leave the same names unused.
    places = (f"{stem}-{number}" for number in reversed(range(ceiling)))
    known = known.union(islice((place for place in places if place not in member_index), beyond))
    # Names are tried one by one: the ceiling may be any number, so a list might not fit in memory.
    turned = (f"{stem}-{(created + step) % ceiling}" for step in range(ceiling))
    return tuple(islice((place for place in turned if place not in known), max(0, wanted)))


def _is_place(name: str, member: str, ceiling: int) -> bool:
    """Whether a member has one of the names below the ceiling."""
    found = number(name, member)
    return 0 <= found < ceiling and member == f"{prefix(name)}-{found}"


def _next_number(name: str, created: int, known: Iterable[str]) -> int:
    """The number after the last one, including members whose number was never recorded."""
    return max(created, 1 + max((number(name, member) for member in known), default=-1))


def tail_number(name: str) -> int:
    """The number at the end of a name, after a hyphen; -1 if there is none."""
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() else -1


def number(name: str, member: str) -> int:
    """The number in a member's name; -1 if the name has another form."""
    tail = member.removeprefix(f"{prefix(name)}-")
    return int(tail) if tail != member and tail.isascii() and tail.isdigit() else -1
