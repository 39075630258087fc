"""How ratios are made from rounds."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bullpen.bench.measure import Goal, compare, interleaved, machine_times, percentile, render


@pytest.mark.parametrize(
    ("goal", "ratio", "reached"),
    [
        pytest.param(Goal(0.3), 0.3, True, id="a speed that is just enough"),
        pytest.param(Goal(0.3), 0.29, False, id="a speed that is too low"),
        pytest.param(Goal(3, at_least=False), 3.0, True, id="a time that is just short enough"),
        pytest.param(Goal(3, at_least=False), 3.1, False, id="a time that is too long"),
    ],
)
def test_goal(goal: Goal, ratio: float, reached: bool) -> None:
    assert goal.reached(ratio) is reached


async def test_contenders_take_turns_and_the_order_turns_around() -> None:
    order: list[str] = []

    def contender(name: str) -> Callable[[], Awaitable[int]]:
        async def sample() -> int:
            order.append(name)
            return len(order)

        return sample

    samples = await interleaved(3, contender("ours"), contender("bare"))
    assert order == ["ours", "bare", "bare", "ours", "ours", "bare"]
    assert samples == [[1, 4, 5], [2, 3, 6]]


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    """Not the ratio of medians: a round in which the machine was slow stays one round."""
    result = compare("x", [10, 1, 30], [20, 4, 30], unit="writes/s", goal=Goal(0.5))
    assert (result.ratio, result.ratio_min, result.ratio_max) == (0.5, 0.25, 1.0)
    assert (result.ours, result.reference) == (10, 20)
    assert result.reached


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_percentile(share: float, value: int) -> None:
    assert percentile(range(100, 0, -1), share) == value


def test_results_can_be_read_by_people_and_by_machines() -> None:
    goal = Goal(3, at_least=False)
    details = {"p99_ms": 1.25}
    result = compare("x", [4.0], [1.0], unit="ms", goal=goal, details=details)
    header, row = render((result,)).splitlines()
    assert header.split()[:5] == ["benchmark", "ratio", "spread", "goal", "reached"]
    assert row.split() == ["x", "4.00", "4.00–4.00", "≤", "3", "no", "4", "1", "ms", "p99_ms=1.25"]
    assert json.loads(json.dumps(result.document())) == {
        "name": "x",
        "ratio": 4.0,
        "ratioMin": 4.0,
        "ratioMax": 4.0,
        "goal": 3,
        "better": "lower",
        "reached": False,
        "unit": "ms",
        "ours": 4.0,
        "reference": 1.0,
        "details": {"p99_ms": 1.25},
    }


def stat(path: Path, line: str) -> Path:
    path.write_text(f"{line}\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    return path


def test_the_share_of_steal_time_is_of_the_time_that_passed(tmp_path: Path) -> None:
    before = machine_times(stat(tmp_path / "a", "cpu  100 0 50 800 10 0 5 35 7 0"))
    after = machine_times(stat(tmp_path / "b", "cpu  150 0 60 820 10 0 5 55 9 0"))
    assert after.share_since(before) == pytest.approx(0.2)
    assert before.share_since(before) == 0.0


def test_this_machine_counts_its_steal_time() -> None:
    assert machine_times().total > 0
