"""What an instance is given, from what the host allows and what the operator decided."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bullpen.errors import NoCapacity, Refused
from bullpen.placements.base import Artifact, Needs, Program, Site
from bullpen.placements.local import host_sandbox, layout
from bullpen.placements.local.confinement import Layer, LayerName, SandboxMode
from bullpen.placements.local.host_sandbox import Host, HostSandbox, SandboxSettings

NEEDS = Needs(memory_bytes=1, cpus=1, runtime="qemu")
ALL = tuple(Layer(name=name) for name in LayerName)
WITHOUT_PROGRAMS = tuple(
    Layer(name=layer.name, problem="no bubblewrap", remedy="install it")
    if layer.name is LayerName.PROGRAMS
    else layer
    for layer in ALL
)


async def outfitter(
    monkeypatch: pytest.MonkeyPatch, host: Host, mode: SandboxMode = SandboxMode.PREFERRED
) -> HostSandbox:
    monkeypatch.setattr(host_sandbox, "probe", lambda *_, **__: host)
    made = HostSandbox(Path("/data"), SandboxSettings(mode=mode, paths=("/srv/firmware",)))
    await made.prepare(())
    return made


def state(user: int = 0) -> layout.State:
    return layout.State(
        key=("lab", "a"), owner_uid="u", provisioner="p", token="t", memory_bytes=1, cpus=1,
        single_use=True, retain=False, user=user,
    )  # fmt: skip


async def test_every_layer_there_is_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(layers=ALL, users=range(10, 12), wrapper="/usr/bin/bwrap")
    made = await outfitter(monkeypatch, host)
    found = made.confinement(state(user=10), NEEDS, Site(artifacts={}))
    assert found is not None
    assert (found.user, found.namespace, found.files, found.room) == (10, False, True, True)
    assert (found.wrapper, found.readable) == ("/usr/bin/bwrap", ("/srv/firmware",))
    assert made.sandboxing.complete


async def test_a_network_of_its_own_is_for_what_runs_machines_or_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await outfitter(monkeypatch, Host(layers=ALL))
    adb = Needs(memory_bytes=1, cpus=1, programs=(Program("adb", "adb"),))
    for needs, isolated in ((adb, True), (Needs(memory_bytes=1, cpus=1), False)):
        found = made.confinement(state(), needs, Site(artifacts={}))
        assert found is not None
        assert found.room is isolated


async def test_each_instance_has_a_user_until_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await outfitter(monkeypatch, Host(layers=ALL, users=range(10, 12)))
    assert made.user({10}) == 11
    with pytest.raises(NoCapacity, match="all 2 users"):
        made.user({10, 11})


async def test_a_service_that_is_not_root_uses_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await outfitter(monkeypatch, Host(layers=ALL, namespace=True))
    assert made.user(()) == 0
    found = made.confinement(state(), NEEDS, Site(artifacts={}))
    assert found is not None
    assert found.namespace


async def test_a_layer_that_is_missing_is_said_once_and_gone_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        host = Host(layers=WITHOUT_PROGRAMS, wrapper="/usr/bin/bwrap")
        made = await outfitter(monkeypatch, host)
    assert [record.message for record in caplog.records] == ["sandbox layer not available"]
    made.refuse()
    found = made.confinement(state(), NEEDS, Site(artifacts={}))
    assert found is not None
    assert found.wrapper == ""
    assert made.sandboxing.reason == "LayersMissing"
    assert "programs: no bubblewrap" in made.sandboxing.message


async def test_where_the_sandbox_is_required_nothing_is_started_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await outfitter(monkeypatch, Host(layers=WITHOUT_PROGRAMS), SandboxMode.REQUIRED)
    with pytest.raises(Refused, match="programs: no bubblewrap"):
        made.refuse()
    made = await outfitter(monkeypatch, Host(layers=ALL), SandboxMode.REQUIRED)
    made.refuse()


async def test_without_a_sandbox_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await outfitter(monkeypatch, Host(layers=ALL), SandboxMode.OFF)
    assert made.confinement(state(), NEEDS, Site(artifacts={})) is None
    assert made.user(()) == 0
    assert made.sandboxing.reason == "SwitchedOff"


async def test_a_file_that_instances_could_not_read_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.touch(mode=0o600)
    made = await outfitter(monkeypatch, Host(layers=ALL, users=range(10, 12)))
    site = Site(artifacts={Artifact(path=str(image)): image})
    with pytest.raises(Refused, match=f"chmod o\\+r {image}"):
        made.confinement(state(user=10), NEEDS, site)
    assert made.confinement(state(), NEEDS, site) is not None
