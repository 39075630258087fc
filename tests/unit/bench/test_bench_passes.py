"""The benchmark of passes runs at every size and compares neighbours. How fast is not tested."""

from __future__ import annotations

from bullpen.bench import passes


async def test_each_size_is_compared_with_the_one_before() -> None:
    results = await passes.run(rounds=1, sizes=(2, 4, 8))
    assert [result.name for result in results] == [
        "cost per change, 4 members against 2",
        "calls per change, 4 members against 2",
        "cost per change, 8 members against 4",
        "calls per change, 8 members against 4",
        "cost per change, lasting targets, 4 members against 2",
        "calls per change, lasting targets, 4 members against 2",
        "cost per change, lasting targets, 8 members against 4",
        "calls per change, lasting targets, 8 members against 4",
        *(
            f"pass over {size} lasting targets, against one over as many members of a set"
            for size in (2, 4, 8)
        ),
    ]
    for result in results:
        assert min(result.ours, result.reference) > 0
