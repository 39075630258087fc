"""The benchmark of growth runs at every size and compares neighbours. How fast is not tested."""

from __future__ import annotations

from bullpen.bench import growth


async def test_each_size_is_compared_with_the_one_before() -> None:
    results = await growth.run(rounds=1, exporters=(3, 6), waiting=(1, 2), cycles=2)
    assert [result.name for result in results] == [
        "cost per lease, 6 exporters against 3",
        "cost per lease, 2 waiting against 1",
    ]
    for result in results:
        assert min(result.ours, result.reference) > 0
