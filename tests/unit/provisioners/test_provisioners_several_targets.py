"""Several targets behind one exporter: their exports, needs and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bullpen.api.exporter_template import Driver, Target
from bullpen.core.targets import profiles
from bullpen.errors import Cause
from bullpen.placements.base import Needs, Site
from bullpen.provisioners import qemu, several_targets
from bullpen.provisioners.base import Profile
from bullpen.provisioners.mock import MockRecipe
from bullpen.provisioners.qemu import QemuRecipe

SITE = Site(artifacts={})
RECIPE = QemuRecipe(host_arch="x86_64")


def bench(*targets: Target, drivers: tuple[Driver, ...] = ()) -> Profile:
    return Profile(
        provisioner=qemu.NAME,
        parameters={"accel": "tcg", "resources": {"cpu": 1, "memory": "128Mi"}},
        drivers=drivers,
        targets=targets,
        identity=profiles.identity("uid"),
    )


BOARD = Target(name="board", parameters={"arch": "aarch64", "resources": {"memory": "256Mi"}})
PEER = Target(name="peer", parameters={"arch": "arm"})


def paths(made: Profile) -> list[str]:
    return [cause.field for cause in several_targets.causes(RECIPE, made)]


def test_each_target_has_its_drivers_below_its_name() -> None:
    exported = several_targets.export(RECIPE, bench(BOARD, PEER), SITE)
    assert set(exported) == {"board", "peer"}
    for name, arch in (("board", "aarch64"), ("peer", "arm")):
        children = exported[name]["children"]
        assert children["qemu"]["config"]["target"]["arch"] == arch
        assert children["power"] == {"ref": f"{name}.qemu.power"}
        assert children["serial"] == {"ref": f"{name}.qemu.console"}


def test_shared_drivers_refer_to_targets() -> None:
    shared = Driver(name="power", ref="board.power")
    made = bench(BOARD, PEER, drivers=(shared,))
    assert several_targets.causes(RECIPE, made) == ()
    assert several_targets.export(RECIPE, made, SITE)["power"] == {"ref": "board.power"}


def test_machines_of_a_bench_differ_in_identity_and_keep_it() -> None:
    first, second = profiles.each_target(bench(BOARD, PEER))
    assert first.identity is not None
    assert second.identity is not None
    assert first.identity.mac != second.identity.mac
    assert first.identity.uuid != second.identity.uuid
    assert profiles.each_target(bench(PEER, BOARD))[1] == first


def test_a_bench_needs_what_its_targets_need_together() -> None:
    first, second = (RECIPE.needs(each) for each in profiles.each_target(bench(BOARD, PEER)))
    needs = several_targets.needs(RECIPE, bench(BOARD, PEER))
    assert needs.memory_bytes == first.memory_bytes + second.memory_bytes
    assert needs.cpus == first.cpus + second.cpus
    assert needs.memory_bytes_max == first.memory_bytes_max + second.memory_bytes_max
    assert {program.name for program in needs.programs} == {
        "qemu-system-aarch64",
        "qemu-system-arm",
        "qemu-img",
    }


def test_a_target_without_a_limit_leaves_the_bench_without_one() -> None:
    class Unlimited(MockRecipe):
        def needs(self, profile: Profile) -> Needs:
            known = super().needs(profile)
            return replace(known, file_bytes_max=9 if profile.parameters.get("known") else 0)

    limited = Target(name="a", parameters={"known": True})
    assert several_targets.needs(Unlimited(), bench(limited)).file_bytes_max == 9
    assert several_targets.needs(Unlimited(), bench(limited, PEER)).file_bytes_max == 0


@pytest.mark.parametrize(
    ("made", "path"),
    [
        pytest.param(
            bench(BOARD, Target(name="peer", parameters={"arch": "vax"})),
            "targets[1].parameters.arch",
            id="a parameter of a target",
        ),
        pytest.param(
            bench(Target(name="board", drivers=(Driver(name="x", ref="gone.power"),))),
            "targets[0].drivers[0].ref",
            id="a ref of a target",
        ),
        pytest.param(
            bench(BOARD, drivers=(Driver(name="x", ref="peer.power"),)),
            "drivers[0].ref",
            id="a shared ref to no target",
        ),
        pytest.param(
            bench(BOARD, drivers=(Driver(name="board", type="a.Driver"),)),
            "drivers[0].name",
            id="a driver with the name of a target",
        ),
    ],
)
def test_an_error_is_named_by_path(made: Profile, path: str) -> None:
    assert paths(made) == [path]


def test_provisioners_of_machines_refuse_several_targets() -> None:
    assert several_targets.refused("ec2", bench(BOARD)) == (
        Cause(field="targets", message="Forbidden: ec2 has one target per exporter"),
    )
    assert several_targets.refused("x", replace(bench(), targets=None)) == ()
