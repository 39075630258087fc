"""The benchmark of claims runs beside first fit and brute force. How fast is not tested."""

from __future__ import annotations

from bullpen.bench import claims


async def test_a_pass_and_a_freed_device_are_measured_beside_first_fit() -> None:
    results = await claims.run(rounds=1, size=60, small=30, tiny=12)
    assert [result.name for result in results] == [
        "full pass, 60 claims on 60 devices",
        "one freed device, 60 claims waiting",
        "the slowest of 29 claims and queues that are hard to answer",
        "full pass, 30 claims on 30 devices, against first fit",
        "full pass, 12 claims on 12 devices, against brute force",
    ]
    for result in results:
        assert result.ours > 0
    assert results[0].details["served"] > 0
    assert {"H1", "H5d", "H9", "H11b", "H14", "H17", "H22"} <= set(results[2].details)
    assert results[3].details["first fit"] > 0
    assert results[4].details["served"] == results[4].details["brute force"]
