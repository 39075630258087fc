"""The default roles: created at the first start, and restored but never cut back at later ones."""

from __future__ import annotations

from dataclasses import replace

from bullpen.api.kinds.rbac import ClusterRole, PolicyRule
from bullpen.app.initial_objects import ensure_policy
from bullpen.core.rbac.authorization import uncovered
from support.objects_homes import registry_home

ROLE = "bullpen:reader"
OWN = PolicyRule(api_groups=("example.com",), resources=("widgets",), verbs=("get",))


async def test_a_rule_that_was_removed_comes_back_and_one_that_was_added_stays() -> None:
    async with registry_home() as (home, _):
        await ensure_policy(home.objects)
        first = await home.objects.get(ClusterRole, "", ROLE)
        assert first.policy_rules
        await home.objects.update(replace(first, policy_rules=(*first.policy_rules[1:], OWN)))
        await ensure_policy(home.objects)
        found = await home.objects.get(ClusterRole, "", ROLE)
        assert OWN in found.policy_rules
        assert uncovered(found.policy_rules, first.policy_rules) == ()


async def test_nothing_is_written_when_nothing_is_missing() -> None:
    async with registry_home() as (home, _):
        await ensure_policy(home.objects)
        first = await home.objects.get(ClusterRole, "", ROLE)
        await home.objects.update(replace(first, policy_rules=(*first.policy_rules, OWN)))
        changed = await home.objects.get(ClusterRole, "", ROLE)
        await ensure_policy(home.objects)
        assert await home.objects.get(ClusterRole, "", ROLE) == changed
