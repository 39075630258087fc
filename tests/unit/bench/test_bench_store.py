"""The store benchmark runs and measures both sides. How fast they are is not tested."""

from __future__ import annotations

from bullpen.bench import store


async def test_every_number_of_writers_gives_one_ratio() -> None:
    results = await store.run(rounds=1, seconds=0.0)
    assert [result.name for result in results] == [
        "store put, 1 writer",
        "store put, 16 writers",
        "store put, 64 writers",
    ]
    for result in results:
        assert min(result.ours, result.reference, *result.details.values()) > 0
