"""How a new template or class reaches the members of a pool: one at a time, and not blindly.

Decides which members are replaced; ``scale_plan`` decides what that means for its plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bullpen.core.pools.member_index import MemberIndex, MemberSubset
from bullpen.core.pools.members import STARTING, SUPPLY, Member, Phase
from bullpen.core.pools.sizes import Sizes
from bullpen.core.pools.start_throttle import StartHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Members of an old template or class that no lease holds."""

    unborn: tuple[Member, ...] = ()
    """Not yet ready, so not in use."""

    old: tuple[Member, ...] = ()
    paused: bool = False
    """The previous step is still in progress, or a member is not ready."""

    failing: bool = False
    """Members of the new template or class failed to start, and none has started since."""

    blind: bool = False
    """It is time for another try, and no new member exists that could show how it ends."""

    def surges(self, supply: MemberSubset, sizes: Sizes) -> bool:
        """Whether to create a new member before an old one is removed: there is room for both."""
        exact = len(supply) == sizes.target
        return bool(self.old) and not self.paused and exact and sizes.room != 0

    def replaced(self, supply: MemberSubset, sizes: Sizes) -> list[Member]:
        """The old member to remove now, if any."""
        if self.paused or len(supply) < sizes.target or self.surges(supply, sizes):
            return []
        if self.failing and not self.blind:
            return []
        return drain_order(self.old)[:1]

    def spare(self, replaced: Sequence[Member]) -> int:
        """One member above the target is allowed while old members remain."""
        return 1 if len(self.old) > len(replaced) else 0


def rollout_of(member_index: MemberIndex, start_history: StartHistory, *, now: datetime) -> Rollout:
    """No old member is removed until a new one is known to start.

    After a failure, another new member is tried whenever the throttle allows it. Without room for
    it, one old member makes room; no other goes before the new one has started.
    """
    failures = start_history.failures
    supply = [m for m in member_index.unusual if m.phase in SUPPLY and not m.leaving]
    outdated = [m for m in supply if not m.current and not m.leased]
    # A member that is not ready, for whatever reason, is as good as one that was removed.
    coming = any(
        m.current and (m.phase in STARTING or (m.phase is Phase.OFFLINE and not m.leased))
        for m in supply
    )
    going = any(
        m.phase in (Phase.DRAINING, Phase.ENDING)
        and (not m.current or failures is not None)
        and not m.leased
        for m in member_index.unusual
    )
    # A failure is recorded first; the next pass decides what it means for the rollout.
    failed = any(m.phase is Phase.FAILED and m.current for m in member_index.unusual)
    untried = not member_index.usual and not any(m.current for m in supply)
    return Rollout(
        unborn=tuple(m for m in outdated if m.phase in STARTING and failures is None),
        old=tuple(m for m in outdated if m.phase not in STARTING),
        paused=coming or going or failed,
        failing=failures is not None,
        blind=failures is not None and untried and failures.retry_at <= now,
    )


def drain_order(members: Iterable[Member], *, newest_first: bool = True) -> list[Member]:
    """Cheapest to lose first: not ready, then outdated, then by age."""
    by_age = sorted(members, key=lambda m: (m.created, len(m.name), m.name), reverse=newest_first)
    return sorted(by_age, key=lambda m: (m.phase is Phase.READY, m.current))
