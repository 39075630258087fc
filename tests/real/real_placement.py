"""Virtual targets as real processes: a supervisor in this process or in one of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bullpen.api.paths import decode, encode
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.base import Site, Workload
from bullpen.placements.local import layout
from bullpen.placements.local.capacity import host_limits
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.placements.local.retention import RetentionLimits
from bullpen.provisioners.base import (
    Connection,
    Instance,
    InstancePhase,
    InstanceSpec,
    Key,
    Profile,
    Provisioner,
)
from bullpen.provisioners.mock import MockRecipe
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.provisioners.qemu import QemuRecipe
from support.real_service import Service

SECONDS_MAX = 180.0
DRIVERS = (
    "bullpen.drivers.qemu",
    "jumpstarter_driver_composite.driver",
    "jumpstarter_driver_power.driver",
)
UBOOT: dict[str, object] = {
    "arch": "aarch64",
    "resources": {"cpu": 1, "memory": "128Mi", "storage": "64Mi"},
    "firmware": {"path": "/usr/lib/u-boot/qemu_arm64/u-boot.bin"},
    "hostfwd": {"ssh": {"guestPort": 22}},
}


def placement_at(
    data: Path,
    *,
    orphan_seconds_max: float = 30.0,
    load: tuple[str, ...] = DRIVERS,
    retained_max: int = 50,
) -> LocalPlacement:
    settings = LocalSettings(
        data=data,
        limits=host_limits(),
        zygote=ZygoteSettings(
            load=load, orphan_seconds_max=orphan_seconds_max, runtime_base=sockets(data)
        ),
        retention=RetentionLimits(keep=retained_max),
    )
    return LocalPlacement(settings, clock=SystemClock(), ids=RandomIds())


def sockets(data: Path) -> Path:
    """Where this test's sockets are, so that it can see that they are gone."""
    path = Path("/tmp") / f"bp-{hashlib.sha256(str(data).encode()).hexdigest()[:12]}"
    path.mkdir(exist_ok=True)
    return path


class Targets:
    """Targets of one test: makes them, waits for them, knows their processes."""

    def __init__(self, service: Service, placement: LocalPlacement) -> None:
        self.service = service
        self.placement = placement
        self.qemu: Provisioner = PlacedProvisioner(QemuRecipe(host_arch="x86_64"), placement)
        self.mock: Provisioner = PlacedProvisioner(MockRecipe(), placement)
        self._news = asyncio.Event()
        placement.listen(lambda _: self._news.set())

    async def qemu_target(self, name: str, **chosen: Any) -> Key:
        chosen = {"parameters": UBOOT, **chosen}
        return await self._target(self.qemu, name, **chosen)

    async def mock_target(self, name: str, **chosen: Any) -> Key:
        return await self._target(self.mock, name, **chosen)

    async def _target(self, provisioner: Provisioner, name: str, **chosen: Any) -> Key:
        config = await asyncio.to_thread(exporter_config, self.service, name)
        spec = spec_for(config, provisioner.name, **chosen)
        await provisioner.ensure(spec)
        await self.until(spec.key, InstancePhase.RUNNING)
        return spec.key

    async def until(self, key: Key, phase: InstancePhase) -> Instance:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                self._news.clear()
                found = {item.key: item for item in await self.placement.observe_all()}.get(key)
                if found is not None and found.phase is phase:
                    return found
                if found is not None and found.phase is InstancePhase.EXITED:
                    raise AssertionError(f"{found}\n{self.log(key)}")
                await self._news.wait()

    def log(self, key: Key) -> str:
        return self.placement.layout.log(key).read_text()

    def zygote(self) -> psutil.Process:
        state = layout.read_zygote(self.placement.layout)
        assert state is not None
        return psutil.Process(state.process.pid)

    def exporter(self, key: Key) -> psutil.Process:
        return exporter_process(self.placement.layout, key)


def exporter_process(places: Layout, key: Key) -> psutil.Process:
    found = layout.read_process(places.instance(key))
    assert found is not None
    return psutil.Process(found.pid)


@contextlib.asynccontextmanager
async def targets(service: Service, data: Path, **chosen: Any) -> AsyncIterator[Targets]:
    placement = placement_at(data, **chosen)
    async with placement.running():
        yield Targets(service, placement)


def exporter_config(service: Service, name: str) -> str:
    """The config of an exporter, which is made anew if a test is run a second time."""
    path = service.home / f"{name}.yaml"
    if path.exists():
        service.bullpen("delete", f"exporter/{name}")
        path.unlink()
    service.bullpen("exporter", "create", name, "-l", f"target={name}", "--out", str(path))
    return path.read_text()


def spec_for(
    config: str,
    provisioner: str,
    *,
    credentials: dict[str, bytes] | None = None,
    **chosen: Any,
) -> InstanceSpec:
    """An instance that connects as the exporter with this config."""
    read = yaml.safe_load(config)
    key = (read["metadata"]["namespace"], read["metadata"]["name"])
    ca_pem = base64.b64decode(read["tls"]["ca"]).decode()
    return InstanceSpec(
        key=key,
        owner_uid=f"uid-{key[1]}",
        profile=Profile(provisioner=provisioner, **chosen),
        connection=Connection(endpoint=read["endpoint"], token=read["token"], ca_pem=ca_pem),
        credentials=credentials or {},
    )


def hook_before_leases(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let every exporter that is started from here run ``script`` before each lease."""
    plain = Workload.config

    def hooked(workload: Workload, site: Site) -> bytes:
        hooks = {"beforeLease": {"script": script}}
        return encode({**decode(plain(workload, site)), "hooks": hooks})

    monkeypatch.setattr(Workload, "config", hooked)


class Lessee:
    """A shell of the real client, holding a lease and running what it is told."""

    def __init__(self, service: Service, name: str) -> None:
        client = service.data / "clients" / "default.yaml"
        loop = 'echo "done 0"; while read -r line; do sh -c "$line"; echo "done $?"; done'
        command = ["jmp", "shell", "--client-config", str(client), "-l", f"target={name}", "--"]
        self._process = subprocess.Popen(
            [*command, "sh", "-c", loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=service.environment,
            start_new_session=True,
        )
        self._await_done()

    def run(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._await_done()

    def _await_done(self) -> str:
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            if line.startswith("done "):
                assert line.strip() == "done 0", said
                return said
            said += line
        raise AssertionError(f"the client ended: {said}")

    def release(self) -> None:
        self._process.communicate(timeout=SECONDS_MAX)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@contextlib.contextmanager
def leased(service: Service, name: str, *, abandon: bool = False) -> Iterator[Lessee]:
    """The target leased and switched on; given back unless it is to be abandoned."""
    lessee = Lessee(service, name)
    try:
        lessee.run("j power on")
        yield lessee
        if not abandon:
            lessee.release()
    finally:
        lessee.kill()


class OtherSupervisor:
    """A supervisor in a process of its own, to be killed."""

    def __init__(self, data: Path, specs: list[dict[str, Any]], *, orphan: float) -> None:
        self.data = data
        command = [sys.executable, __file__, str(data), str(orphan)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(specs) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == "ready"

    def whole(self) -> list[psutil.Process]:
        """Its zygote, the exporters and all that they started."""
        state = layout.read_zygote(Layout(self.data))
        assert state is not None
        zygote = psutil.Process(state.process.pid)
        return [zygote, *zygote.children(recursive=True)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    def lives(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        return False

    return [process for process in processes if lives(process)]


async def _supervise(data: Path, orphan_seconds_max: float, specs: list[dict[str, Any]]) -> None:
    placement = placement_at(data, orphan_seconds_max=orphan_seconds_max)
    recipes = {recipe.name: recipe for recipe in (QemuRecipe(host_arch="x86_64"), MockRecipe())}
    news = asyncio.Event()
    placement.listen(lambda _: news.set())
    async with placement.running():
        for spec in specs:
            provisioner = PlacedProvisioner(recipes[spec["provisioner"]], placement)
            await provisioner.ensure(spec_for(**spec))
        while any(i.phase is not InstancePhase.RUNNING for i in await placement.observe_all()):
            news.clear()
            await news.wait()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_supervise(Path(sys.argv[1]), float(sys.argv[2]), json.loads(input())))
