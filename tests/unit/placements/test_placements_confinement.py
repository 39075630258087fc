"""What an instance is confined to: users, control groups and layers, decided without a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.placements.local.cgroups import Cgroups, CgroupsMissing, Limits, Trees, find
from bullpen.placements.local.confinement import (
    FIRST_USER,
    USERS_PER_SERVICE,
    Layer,
    LayerName,
    free_user,
    missing,
    outermost,
    user_range,
)

V1_MOUNTS = """\
30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup memory rw,memory
31 23 0:27 / /sys/fs/cgroup/pids rw - cgroup pids rw,pids
32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_MEMBERSHIP = "4:memory:/jobs/one\n3:pids:/\n2:cpu,cpuacct:/slice\n0::/\n"


def test_users_depend_on_the_data_directory_and_are_far_from_all_others() -> None:
    one, other = user_range(Path("/srv/one")), user_range(Path("/srv/other"))
    assert one == user_range(Path("/srv/one"))
    assert not set(one) & set(other)
    assert FIRST_USER <= one[0] <= one[-1] < 2**31
    assert user_range(Path("/x"), first=5000) == range(5000, 5000 + USERS_PER_SERVICE)


def test_no_two_instances_have_one_user() -> None:
    users = range(10, 13)
    assert free_user(users, {0, 10, 12}) == 11
    assert free_user(users, {10, 11, 12}) == 0


def test_what_is_missing_is_said_in_one_line() -> None:
    layers = (
        Layer(name=LayerName.USER),
        Layer(name=LayerName.PROGRAMS, problem="bubblewrap is not installed", remedy="x"),
    )
    assert missing(layers) == "programs: bubblewrap is not installed"
    assert missing(layers[:1]) == ""


def test_places_inside_others_are_left_out() -> None:
    places = [Path("/tmp/a/b"), Path("/tmp"), Path("/home"), Path("/homes")]
    assert list(outermost(places)) == [Path("/home"), Path("/homes"), Path("/tmp")]


def test_the_trees_of_version_1_are_found_for_this_process() -> None:
    assert find(mounts=V1_MOUNTS, membership=V1_MEMBERSHIP).places == {
        "memory": Path("/sys/fs/cgroup/memory/jobs/one"),
        "pids": Path("/sys/fs/cgroup/pids"),
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/slice"),
    }


def test_version_2_is_used_where_its_controllers_are_on(tmp_path: Path) -> None:
    own = tmp_path / "lab.service"
    own.mkdir()
    mounts = f"30 23 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    (own / "cgroup.subtree_control").write_text("cpu memory pids\n")
    found = find(mounts=mounts, membership="0::/lab.service\n")
    assert (found.version, set(found.places.values())) == (2, {own})
    (own / "cgroup.subtree_control").write_text("pids\n")
    with pytest.raises(CgroupsMissing, match="memory, cpu"):
        find(mounts=mounts, membership="0::/lab.service\n")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, {"memory.limit_in_bytes": "1000", "pids.max": "7", "cpu.cfs_quota_us": "150000"}),
        (2, {"memory.max": "1000", "pids.max": "7", "cpu.max": "150000 100000"}),
    ],
)
def test_limits_are_written_in_the_words_of_each_version(
    tmp_path: Path, version: int, expected: dict[str, str]
) -> None:
    places = {name: tmp_path / (name if version == 1 else "") for name in ("memory", "pids", "cpu")}
    for place in places.values():
        place.mkdir(exist_ok=True)
    groups = Cgroups(Trees(version=version, places=places), Path("/data"))
    groups.prepare()
    made = groups.make("x", Limits(memory_bytes=1000, processes=7, cpus=1.5))
    written = {path.name: path.read_text() for place in made for path in Path(place).iterdir()}
    assert written == expected
