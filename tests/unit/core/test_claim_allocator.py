"""The allocator of claims: compared with a search of everything, and on the acceptance cases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bullpen.core.claims.allocator import Answer, Verdict
from support.claim_reference import allocate, brute_force, problems, random_instance

QUICK, FULL = 2_000, 100_000


def check(seed: int) -> Verdict:
    """Compare one random instance, listed in two orders, with the brute-force reference."""
    source = random.Random(seed)
    inventory, terms = random_instance(source)
    answer = allocate(inventory, terms)
    expected = brute_force(inventory, terms)
    if expected is None:
        assert answer.verdict is Verdict.UNSATISFIABLE, seed
    else:
        assert answer.verdict is Verdict.SATISFIED, seed
        assert not problems(inventory, terms, answer), seed
        assert chosen(answer) == [a for a, _ in expected.choices], seed
        assert counts(answer) == [n for _, n in expected.choices], seed
        assert answer.preferred == expected.preferred, seed
        started = [d.name for d in inventory.devices if d.start]
        assert not expected.running or not set(answer.devices) & set(started), seed
    shuffled = list(inventory.devices)
    source.shuffle(shuffled)
    assert allocate(replace(inventory, devices=tuple(shuffled)), terms) == answer, seed
    return answer.verdict


def chosen(answer: Answer) -> list[int]:
    return list(answer.alternatives.values())


def counts(answer: Answer) -> list[int]:
    return [sum(m.request == name for m in answer.members) for name in answer.alternatives]


def test_the_allocator_finds_what_a_search_of_everything_finds() -> None:
    verdicts = [check(seed) for seed in range(QUICK)]
    # Both answers must occur often, or the comparison would show little.
    assert verdicts.count(Verdict.SATISFIED) > QUICK / 4
    assert verdicts.count(Verdict.UNSATISFIABLE) > QUICK / 4


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(10))
def test_the_allocator_agrees_with_the_search_on_100000_instances(part: int) -> None:
    first = QUICK + part * (FULL // 10)
    for seed in range(first, first + FULL // 10):
        check(seed)
