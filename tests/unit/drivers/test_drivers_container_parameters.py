"""The parameters of containers, and the arguments of podman made from them."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api import codec
from bullpen.drivers.container_parameters import ContainerParameters, create_arguments
from bullpen.provisioners.base import Artifact, Profile, Site
from bullpen.provisioners.container import DRIVER, ContainerRecipe

IMAGE = {"path": "/srv/image.tar"}


def arguments(**given: Any) -> str:
    wanted = codec.decode(ContainerParameters, given)
    made = create_arguments(
        wanted, network="none", pidfile="/run/pid", files={"/etc/a": "/srv/a", "/b": "/srv/b"}
    )
    return " ".join(made)


def test_the_container_has_a_terminal_only_if_it_is_the_console() -> None:
    assert "--interactive --tty" in arguments()
    assert "--tty" not in arguments(console="shell")


def test_the_command_replaces_the_images_own_entry_point() -> None:
    made = arguments(command=["sh", "-c", "echo 'x'"])

    assert made.endswith("""--entrypoint ["sh", "-c", "echo 'x'"] localhost/target""")
    assert "--entrypoint" not in arguments()


def test_files_are_read_only_and_variables_are_passed() -> None:
    made = arguments(environment={"B": "2", "A": "1"})

    assert "--env A=1 --env B=2" in made
    assert "--volume /srv/b:/b:ro --volume /srv/a:/etc/a:ro" in made


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"environment": {"A=B": "x"}}, "parameters.environment.A=B"),
        ({"files": {"etc/a": IMAGE}}, "parameters.files.etc/a"),
        ({"files": {"/etc/../a": IMAGE}}, "parameters.files./etc/../a"),
        ({"files": {"/a:rw": IMAGE}}, "parameters.files./a:rw"),
        ({"ports": {"Web": {"port": 80}}}, "parameters.ports.Web"),
        ({"ports": {"power": {"port": 80}}}, "parameters.ports.power"),
        ({"ports": {"web": {"port": 0}}}, "parameters.ports.web.port"),
        ({"ports": {"web": {"port": 80}}, "network": "host"}, "parameters.ports"),
        ({"ready": "("}, "parameters.ready"),
        ({"image": {"url": "https://x.example/i.tar"}}, "parameters.image"),
        ({"resources": {"memory": "much"}}, "parameters.resources.memory"),
    ],
)
def test_a_wrong_parameter_is_named_by_its_path(given: dict[str, Any], field: str) -> None:
    assert [cause.field for cause in ContainerRecipe().check(given)] == [field]


def test_the_recipe_needs_its_files_and_programs_and_exports_one_target() -> None:
    given = {"image": IMAGE, "files": {"/a": {"path": "/srv/a"}}, "resources": {"memory": "1Gi"}}
    profile = Profile(provisioner="container.bullpen.dev", parameters=given)
    needs = ContainerRecipe().needs(profile)

    assert needs.artifacts == (Artifact(path="/srv/image.tar"), Artifact(path="/srv/a"))
    assert [program.package for program in needs.programs] == ["podman", "runc"]
    assert needs.memory_bytes_max > 1 << 30
    exported: Any = ContainerRecipe().export(profile, Site(artifacts={}))
    assert exported["target"]["type"] == DRIVER
    assert exported["target"]["config"]["target"] == given
    assert exported["serial"] == {"ref": "target.console"}
