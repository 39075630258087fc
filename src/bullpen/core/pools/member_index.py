"""The members of a pool, indexed so that a pass costs only its unusual members.

Most members of a large pool need no action: they are ready, up to date, and only a new
lease or the end of one changes them. Those are counted as they come and go; the others are
looked at one by one. Every decision must be the same as if all members had been looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bullpen.core.pools.members import Member, Phase, Stage


class MemberSubset:
    """The usual members of a MemberIndex, and some of its unusual ones."""

    def __init__(self, member_index: MemberIndex, unusual: tuple[Member, ...]) -> None:
        self._index = member_index
        self.unusual = unusual

    def __len__(self) -> int:
        return self._index.usual + len(self.unusual)

    def __iter__(self) -> Iterator[Member]:
        yield from self._index.ordinary()
        yield from self.unusual

    @property
    def leased(self) -> int:
        return self._index.usual_leased + sum(m.leased for m in self.unusual)

    @property
    def idle(self) -> int:
        return self._index.usual_idle + sum(m.idle for m in self.unusual)


class MemberIndex(Sequence[Member]):
    """Members by name. The owner of the index updates it; decisions only read it."""

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._members: dict[str, Member] = {}
        self._unusual: dict[str, Member] = {}
        self.usual_leased = 0
        self.usual_idle = 0
        for member in members:
            self.put(member)

    @classmethod
    def of(cls, members: Sequence[Member]) -> MemberIndex:
        return members if isinstance(members, MemberIndex) else cls(members)

    def put(self, member: Member) -> None:
        """Add a member, or replace its previous state."""
        self.remove(member.name)
        self._members[member.name] = member
        if is_usual(member):
            self._count(member, 1)
        else:
            self._unusual[member.name] = member

    def remove(self, name: str) -> None:
        member = self._members.pop(name, None)
        if member is not None and self._unusual.pop(name, None) is None:
            self._count(member, -1)

    def _count(self, member: Member, step: int) -> None:
        self.usual_leased += step * member.leased
        self.usual_idle += step * member.idle

    def get(self, name: str) -> Member | None:
        return self._members.get(name)

    @property
    def usual(self) -> int:
        return len(self._members) - len(self._unusual)

    def ordinary(self) -> Iterator[Member]:
        """The usual members, one by one. There may be thousands."""
        return (m for name, m in self._members.items() if name not in self._unusual)

    @property
    def unusual(self) -> tuple[Member, ...]:
        return tuple(self._unusual.values())

    def whole(self) -> MemberSubset:
        return MemberSubset(self, self.unusual)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, index: Any) -> Any:
        return tuple(self._members.values())[index]


def is_usual(member: Member) -> bool:
    """Whether only a lease, an edit or a failure will change the member."""
    return (
        member.phase is Phase.READY
        and member.stage is Stage.UP
        and member.current
        and not member.leaving
        and member.due is None
    )
