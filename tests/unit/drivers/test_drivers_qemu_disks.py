"""Which changes of the disks of a running machine are made, and which need a restart."""

from __future__ import annotations

from functools import reduce

import pytest

from bullpen.drivers import qemu_disks
from bullpen.drivers.qemu_disks import Attach, Detach, Grow, RestartNeeded, applied
from bullpen.drivers.target_files import AttachedDisk

MIB = 1 << 20


def disk(name: str, size: int = 8, *, read_only: bool = False) -> AttachedDisk:
    return AttachedDisk(
        name=name, path=f"/disks/{name}", size_bytes=size * MIB, read_only=read_only
    )


ROOT, DATA, CACHE = disk("root"), disk("data"), disk("cache")
IMAGE = disk("image", 0, read_only=True)


@pytest.mark.parametrize(
    ("present", "wanted", "due"),
    [
        pytest.param((ROOT,), (ROOT,), (), id="nothing to do"),
        pytest.param((ROOT,), (ROOT, DATA), (Attach(DATA),), id="one is attached"),
        pytest.param((ROOT, DATA), (ROOT,), (Detach(DATA),), id="one is detached"),
        pytest.param(
            (ROOT, DATA), (ROOT, CACHE), (Detach(DATA), Attach(CACHE)), id="one replaces another"
        ),
        pytest.param(
            (ROOT, DATA), (ROOT, disk("data", 16)), (Grow(disk("data", 16)),), id="one grows"
        ),
        pytest.param((ROOT, disk("data", 16)), (ROOT, DATA), (), id="none shrinks"),
        pytest.param(
            (ROOT, IMAGE), (ROOT, AttachedDisk(name="image", path="", read_only=True), DATA),
            (Attach(DATA),), id="an image it has stays",
        ),
    ],
)  # fmt: skip
def test_the_changes_of_a_running_machine(
    present: tuple[AttachedDisk, ...],
    wanted: tuple[AttachedDisk, ...],
    due: tuple[qemu_disks.Change, ...],
) -> None:
    assert qemu_disks.changes(present, wanted) == due
    after = reduce(applied, due, present)
    assert sorted(each.name for each in after) == sorted(each.name for each in wanted)
    assert qemu_disks.changes(after, after) == ()


@pytest.mark.parametrize(
    ("present", "wanted", "why"),
    [
        pytest.param((ROOT, DATA), (DATA,), "boot disk", id="the boot disk goes"),
        pytest.param((), (ROOT,), "boot disk", id="there was no boot disk"),
        pytest.param((ROOT, DATA, CACHE), (ROOT, CACHE, DATA), "order", id="another order"),
        pytest.param((ROOT,), (ROOT, IMAGE), "image", id="a new image"),
        pytest.param((ROOT,), (disk("root", 64),), "at most 34 MiB", id="over the file limit"),
    ],
)
def test_what_only_a_restart_can_do_is_refused_with_the_reason(
    present: tuple[AttachedDisk, ...], wanted: tuple[AttachedDisk, ...], why: str
) -> None:
    with pytest.raises(RestartNeeded, match=why):
        qemu_disks.changes(present, wanted, bytes_max=34 * MIB)


def test_the_largest_disk_of_the_start_grows_up_to_the_file_limit() -> None:
    wanted = (disk("root", 32),)
    assert qemu_disks.changes((ROOT,), wanted, bytes_max=34 * MIB) == (Grow(wanted[0]),)
