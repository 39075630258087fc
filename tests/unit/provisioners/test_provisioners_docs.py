"""What is documented about provisioners is all there is, and all of it is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bullpen.api import schema
from bullpen.api.fields import Struct
from bullpen.drivers.android_parameters import AndroidParameters
from bullpen.drivers.container_parameters import ContainerParameters
from bullpen.drivers.program_parameters import ProgramParameters
from bullpen.drivers.qemu_parameters import QemuParameters
from bullpen.drivers.renode_parameters import RenodeParameters
from bullpen.drivers.target_files import File
from bullpen.provisioners.baremetal.parameters import HostsParameters
from bullpen.provisioners.base import (
    ExitReason,
    Host,
    InstancePhase,
    Profile,
    Provisioner,
    Site,
)
from bullpen.provisioners.corellium.parameters import CorelliumParameters
from bullpen.provisioners.cuttlefish.parameters import CuttlefishParameters
from bullpen.provisioners.ec2.parameters import Ec2Parameters
from support import provisioner_guide

DOCS = Path(__file__).parents[3] / "docs"
FILE = frozenset(schema.of(File)["properties"])


def leaves(part: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every parameter that has no parts; what every file has is said once."""
    if "items" in part and "properties" in part["items"]:
        yield from leaves(part["items"], f"{path}[]")
    elif "additionalProperties" in part:
        yield from leaves(part["additionalProperties"], f"{path}.NAME")
    elif "properties" in part:
        names = part["properties"].keys()
        if names >= FILE:
            yield path
        for name in sorted(names - FILE if names >= FILE else names):
            yield from leaves(part["properties"][name], f"{path}.{name}".removeprefix("."))
    else:
        yield path


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("qemu-parameters.md", QemuParameters),
        ("program-parameters.md", ProgramParameters),
        ("container-parameters.md", ContainerParameters),
        ("android-parameters.md", AndroidParameters),
        ("renode-parameters.md", RenodeParameters),
        ("hosts.md", HostsParameters),
        ("ec2.md", Ec2Parameters),
        ("corellium.md", CorelliumParameters),
        ("cuttlefish.md", CuttlefishParameters),
    ],
)
def test_every_parameter_is_documented(page: str, kind: type[Struct]) -> None:
    text = (DOCS / "reference" / page).read_text()
    names = list(leaves(schema.of(kind)))

    assert len(names) > (1 if kind is CuttlefishParameters else 8)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_phase_and_exit_reason_is_in_the_guide() -> None:
    text = (DOCS / "how-to" / "write-a-provisioner.md").read_text()
    words = [*(phase.name for phase in InstancePhase), *ExitReason]

    assert [word for word in words if f"| `{word}` |" not in text] == []


def test_the_recipe_in_the_guide_is_one() -> None:
    code = provisioner_guide.files()["turtlelab/src/turtlelab/provisioner.py"]
    name = "turtlelab.provisioner"
    module = sys.modules[name] = ModuleType(name)
    try:
        exec(compile(code, "guide", "exec", dont_inherit=True), module.__dict__)
        recipe = module.PLUGIN.recipe(Host(arch="x86_64"))
        assert recipe.name == module.PLUGIN.name
        profile = Profile(provisioner=recipe.name, parameters={"speed": 3})

        assert recipe.check({"speed": 3}) == ()
        assert [cause.field for cause in recipe.check({"speed": "slow"})] == ["parameters.speed"]
        assert recipe.needs(profile).memory_bytes == 64 << 20
        assert recipe.export(profile, Site(artifacts={}))["power"]["config"] == {"speed": 3}
    finally:
        del sys.modules[name]


def test_the_guide_says_how_many_methods_there_are() -> None:
    text = (DOCS / "how-to" / "write-a-provisioner.md").read_text()
    methods = [name for name, value in vars(Provisioner).items() if _is_method(name, value)]

    assert len(methods) == 9
    assert "a `Provisioner`: nine methods" in text


def _is_method(name: str, value: object) -> bool:
    return callable(value) and not name.startswith("_")
