"""How many members a pool should have: floor, leases, warm buffer, ceiling."""

from __future__ import annotations

from dataclasses import dataclass

from bullpen.core.pools.member_index import MemberSubset
from bullpen.core.pools.members import STARTING


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers a plan is made from."""

    needed: int
    """Members that leases hold or wait for."""

    buffer: int
    floor: int
    ceiling: int | None
    occupied: int
    """Places in use, including members that are being removed."""

    idle: int
    starting: int

    @classmethod
    def of(
        cls,
        supply: MemberSubset,
        *,
        needed: int,
        buffer: int,
        floor: int,
        ceiling: int | None,
        occupied: int,
    ) -> Sizes:
        """``needed`` excludes the members that leases already hold."""
        return cls(
            needed=needed + supply.leased,
            buffer=buffer,
            floor=floor,
            ceiling=ceiling,
            occupied=occupied,
            idle=supply.idle,
            starting=sum(m.phase in STARTING for m in supply.unusual),
        )

    @property
    def wanted(self) -> int:
        return max(self.floor, self.needed + self.buffer)

    @property
    def target(self) -> int:
        return self.wanted if self.ceiling is None else min(self.wanted, self.ceiling)

    @property
    def room(self) -> int | None:
        return None if self.ceiling is None else max(0, self.ceiling - self.occupied)

    def fitting(self, count: int) -> int:
        """How many of ``count`` new members fit below the ceiling."""
        return count if self.room is None else min(count, self.room)

    def text(self, *, waiting: int, claimed: int) -> str:
        """The numbers for users; a member about to be assigned counts as leased."""
        ceiling = "no ceiling" if self.ceiling is None else f"ceiling {self.ceiling}"
        return (
            f"{self.needed - waiting} leased, {waiting} waiting, {self.idle - claimed} idle,"
            f" {self.starting} starting; target {self.target}, {ceiling}"
        )
