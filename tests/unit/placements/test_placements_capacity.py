"""Whether one more fits, one sentence per test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.placements.base import Needs, Program
from bullpen.placements.local.capacity import (
    DISK_BYTES_MIN,
    Limits,
    Usage,
    free_memory,
    host_limits,
    missing_programs,
    shortage,
)

GIB = 1 << 30
LIMITS = Limits(instances=4, memory_bytes=8 * GIB, cpus=4.0)


@pytest.mark.parametrize(
    ("needs", "used", "free", "expected"),
    [
        pytest.param((1, 1.0), (0, 0, 0.0), 8, "", id="an empty host takes it"),
        pytest.param((2, 1.0), (3, 6, 3.0), 2, "", id="the last one may fill the host exactly"),
        pytest.param((1, 0.0), (4, 0, 0.0), 8, "4 of at most 4", id="the maximum is a maximum"),
        pytest.param(
            (3, 0.0), (1, 6, 0.0), 8, "needs 3072 MiB", id="promised memory is not promised twice"
        ),
        pytest.param((1, 2.0), (1, 1, 3.0), 8, "needs 2 CPUs", id="nor are CPUs"),
        pytest.param((2, 0.0), (1, 1, 0.0), 1, "1024 MiB are free", id="others use memory too"),
    ],
)
def test_shortage(
    needs: tuple[int, float], used: tuple[int, int, float], free: int, expected: str
) -> None:
    problem = shortage(
        Needs(memory_bytes=needs[0] * GIB, cpus=needs[1]),
        Usage(instances=used[0], memory_bytes=used[1] * GIB, cpus=used[2]),
        LIMITS,
        free_bytes=free * GIB,
        disk_bytes=GIB,
    )
    assert expected in problem
    assert bool(expected) == bool(problem)


@pytest.mark.parametrize(
    ("left", "fits"),
    [
        pytest.param(DISK_BYTES_MIN, True, id="the least that is enough"),
        pytest.param(DISK_BYTES_MIN - 1, False, id="a byte less"),
        pytest.param(0, False, id="a full disk"),
    ],
)
def test_a_full_disk_takes_nothing_and_is_no_failure_of_the_target(left: int, fits: bool) -> None:
    problem = shortage(
        Needs(memory_bytes=0, cpus=0.0), Usage(), LIMITS, free_bytes=GIB, disk_bytes=left
    )
    assert bool(problem) != fits
    assert fits or "its disk has" in problem


@given(st.lists(st.tuples(st.integers(0, 3 * GIB), st.floats(0, 2)), max_size=30))
def test_what_is_taken_never_exceeds_the_limits(wishes: list[tuple[int, float]]) -> None:
    used, refused = Usage(), 0
    for memory_bytes, cpus in wishes:
        needs = Needs(memory_bytes=memory_bytes, cpus=cpus)
        if shortage(needs, used, LIMITS, free_bytes=64 * GIB, disk_bytes=GIB):
            refused += 1
        else:
            used = used.plus(memory_bytes, cpus)

    assert used.instances <= LIMITS.instances
    assert used.memory_bytes <= LIMITS.memory_bytes
    assert used.cpus <= LIMITS.cpus
    assert refused >= len(wishes) - LIMITS.instances


def test_this_host_has_room_for_something() -> None:
    limits = host_limits(instances=7)

    assert limits.instances == 7
    assert free_memory() > 0
    assert limits.cpus >= 1
    assert limits.memory_bytes > 0


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        pytest.param({"qemu-system-arm", "qemu-img"}, "", id="all"),
        pytest.param(
            {"qemu-img"},
            "qemu-system-arm is not installed on this machine; apt-get install qemu-system-arm",
            id="no emulator",
        ),
        pytest.param(
            set(),
            "qemu-system-arm, qemu-img are not installed on this machine;"
            " apt-get install qemu-system-arm qemu-utils",
            id="none",
        ),
    ],
)
def test_programs_that_are_not_installed_are_named_with_their_packages(
    installed: set[str], said: str
) -> None:
    programs = (Program("qemu-system-arm", "qemu-system-arm"), Program("qemu-img", "qemu-utils"))
    needs = Needs(memory_bytes=0, cpus=0.0, programs=programs)
    assert missing_programs(needs, lambda name: name if name in installed else None) == said
