"""Hosts behind real SSH servers keep what every provisioner promises."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from bullpen.core.targets.hosts import Placed
from bullpen.errors import Unavailable, Unreachable
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.provisioners.baremetal import environment, ssh
from bullpen.provisioners.baremetal.environment import Environment
from bullpen.provisioners.baremetal.plugin import hosts
from bullpen.provisioners.baremetal.provisioner import HostsProvisioner
from bullpen.provisioners.base import Connection, Instance, InstancePhase, Key, Provisioner
from bullpen.provisioners.provider import Backend
from bullpen.testing.benches import INSTANCES_MAX, NoRecords, Watcher
from bullpen.testing.controller_stub import StubController
from bullpen.testing.provisioner_contract import ProvisionerContract
from support.real_service import eventually
from support.ssh_hosts import SshHost, SshHosts, has_sshd, ssh_hosts

BACKEND = ("lab", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed"),
]


class MemoryHostRecords(NoRecords):
    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[Key, Placed] = {}

    async def place(self, key: Key, on_record: Placed) -> None:
        self.hosts[key] = on_record

    async def placed(self, key: Key) -> Placed | None:
        return self.hosts.get(key)

    async def all_placed(self, provisioner: str) -> dict[Key, Placed]:
        return dict(self.hosts)


class HostsBench:
    def __init__(self, found: SshHosts, controller: StubController) -> None:
        self.found = found
        self.hosts: HostsProvisioner = hosts(MemoryHostRecords(), SystemClock(), RandomIds())
        self.provisioner: Provisioner = self.hosts
        self.controller = controller
        self.backend = Backend(
            key=BACKEND,
            lab="bench",
            parameters=found.parameters,
            credentials=lambda: found.secret,
        )
        self.hosts.use([self.backend])

    def connection(self) -> Connection:
        return self.controller.connection()

    async def begin_lease(self, key: Key) -> None:
        await self.controller.lease(key, leased=True)

    async def end_lease(self, key: Key) -> None:
        await self.controller.lease(key, leased=False)

    def crash(self, key: Key) -> None:
        processes = (host.process_of(key) for host in self.found.hosts.values())
        (running,) = (process for process in processes if process is not None)
        os.kill(running.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def bench_on(found: SshHosts, directory: Path) -> AsyncIterator[HostsBench]:
    """A service of its own with these hosts."""
    async with StubController.serving(directory) as controller:
        bench = HostsBench(found, controller)
        await bench.hosts.refresh(BACKEND)
        yield bench
        await bench.hosts.close()


@contextlib.asynccontextmanager
async def hosts_bench(directory: Path) -> AsyncIterator[HostsBench]:
    with ssh_hosts(directory / "hosts", one=INSTANCES_MAX) as found:
        async with bench_on(found, directory) as bench:
            yield bench


@pytest.fixture(scope="module")
def shared_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Hosts for many tests: starting an agent with its zygote costs more than what it runs."""
    with ssh_hosts(tmp_path_factory.mktemp("shared") / "hosts", one=INSTANCES_MAX) as found:
        yield found


class TestHosts(ProvisionerContract):
    @pytest.fixture(autouse=True)
    def _shared(self, shared_hosts: SshHosts) -> None:
        self.shared = shared_hosts

    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[HostsBench]:
        async with bench_on(self.shared, directory) as bench:
            assert await bench.hosts.observe_all() == (), "the last test left nothing"
            yield bench
            for left in await bench.hosts.observe_all():
                await bench.hosts.remove(left.key)


async def until_agents(host: SshHost, count: int) -> None:
    await asyncio.to_thread(eventually, lambda: len(host.agents()) == count, seconds=60)


async def until_gone(host: SshHost, instance: Instance) -> None:
    """The last process may end a moment after its agent."""
    await asyncio.to_thread(eventually, lambda: host.process_of(instance.key) is None, seconds=60)


def is_running(found: Instance) -> bool:
    return found.phase is InstancePhase.RUNNING


async def test_a_service_that_starts_again_finds_what_runs(tmp_path: Path) -> None:
    async with hosts_bench(tmp_path) as bench:
        running = await Watcher(bench).running("a")
        await bench.hosts.close()
        again = HostsBench(bench.found, bench.controller)
        await again.hosts.refresh(BACKEND)
        assert await again.hosts.observe_all() == (running,)
        await again.hosts.close()


async def test_agents_of_two_versions_run_side_by_side_until_the_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts_bench(tmp_path) as bench:
        await Watcher(bench).running("leased")
        await bench.begin_lease(("lab", "leased"))
        await bench.hosts.close()
        newer = replace(environment.current(), digest="newer-version")
        shutil.copytree(
            bench.found.hosts["one"].directory / "environments" / environment.current().digest,
            bench.found.hosts["one"].directory / "environments" / newer.digest,
        )
        monkeypatch.setattr(environment, "current", lambda: newer)
        upgraded = HostsBench(bench.found, bench.controller)
        watcher = Watcher(upgraded)
        await upgraded.hosts.refresh(BACKEND)
        assert is_running(await watcher.until("leased", InstancePhase.RUNNING))
        assert len(bench.found.hosts["one"].agents()) == 2
        await watcher.running("new")
        await watcher.running("newer")
        agents = {Path(place).name for place in bench.found.hosts["one"].agents()}
        assert newer.digest in agents
        for name in ("leased", "new", "newer"):
            await upgraded.hosts.ensure(watcher.spec(name))

        await upgraded.end_lease(("lab", "leased"))
        await watcher.until("leased", InstancePhase.EXITED)
        await upgraded.hosts.remove(("lab", "leased"))
        for host in bench.found.hosts.values():
            await until_agents(host, 1)
        await upgraded.hosts.refresh(BACKEND)
        assert len(await upgraded.hosts.observe_all()) == 2
        one = bench.found.hosts["one"]
        await asyncio.to_thread(eventually, lambda: len(one.directories()) == 1, seconds=60)
        assert [path.name for path in one.directories()] == [newer.digest], "its files are gone"
        await upgraded.hosts.close()


async def test_an_agent_that_is_killed_is_started_again_and_its_machines_go_on(
    tmp_path: Path,
) -> None:
    async with hosts_bench(tmp_path) as bench:
        running = await Watcher(bench).running("a")
        host = next(each for each in bench.found.hosts.values() if each.process_of(running.key))
        process = host.process_of(running.key)
        (agent,) = host.agents().values()
        os.kill(agent.pid, signal.SIGKILL)
        await until_agents(host, 0)
        with contextlib.suppress(Unreachable):
            await bench.hosts.refresh(BACKEND)
        # The first may have met the connection that has just ended.
        await bench.hosts.refresh(BACKEND)
        assert [each.key for each in await bench.hosts.observe_all()] == [running.key]
        assert host.process_of(running.key) == process


async def test_a_host_that_nobody_reaches_ends_its_machines_and_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = ssh.Setup.command

    def command(self: ssh.Setup, agent: str, *, started: Environment | None) -> str:
        return f"{ordinary(self, agent, started=started)} --orphan-seconds-max 1"

    monkeypatch.setattr(ssh.Setup, "command", command)
    async with hosts_bench(tmp_path) as bench:
        running = await Watcher(bench).running("a")
        await bench.hosts.close()
        for host in bench.found.hosts.values():
            await until_agents(host, 0)
            await until_gone(host, running)


async def test_another_python_is_refused_by_its_version(tmp_path: Path) -> None:
    script = tmp_path / "old-python"
    answer = {"python": [3, 8], "machine": "x86_64", "directory": "/", "home": "/"}
    script.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{json.dumps(answer)}'\n")
    script.chmod(0o755)
    with ssh_hosts(tmp_path / "hosts", one=1) as found:
        given = found.parameters
        given["hosts"][0]["python"] = str(script)
        made = hosts(MemoryHostRecords(), SystemClock(), RandomIds())
        made.use(
            [Backend(key=BACKEND, lab="b", parameters=given, credentials=lambda: found.secret)]
        )
        with pytest.raises(Unreachable, match=r"is Python 3\.8, and this service runs with"):
            await made.refresh(BACKEND)


async def test_a_certificate_of_the_key_opens_hosts_that_trust_its_authority(
    tmp_path: Path,
) -> None:
    with ssh_hosts(tmp_path / "hosts", one=1) as found:
        host, authority = found.hosts["one"], asyncssh.generate_private_key("ssh-ed25519")
        (host.place / "authorized_keys").write_bytes(b"")
        (host.place / "trusted_keys").write_bytes(authority.export_public_key())
        certificate = authority.generate_user_certificate(
            found.client_key, "bullpen", principals=[getpass.getuser()]
        )
        secret = dict(found.secret)
        async with StubController.serving(tmp_path) as controller:
            bench = HostsBench(found, controller)
            bench.hosts.use([replace(bench.backend, credentials=lambda: secret)])
            with pytest.raises(Unavailable, match="does not accept the key"):
                await bench.hosts.refresh(BACKEND)
            secret["ssh-publickey-cert"] = b"ssh-ed25519-cert-v01@openssh.com AAAA"
            with pytest.raises(Unavailable, match="ssh-publickey-cert of the Secret"):
                await bench.hosts.refresh(BACKEND)
            secret["ssh-publickey-cert"] = certificate.export_certificate()
            await bench.hosts.refresh(BACKEND)
            (state,) = bench.hosts.listing(BACKEND).hosts
            assert (state.answers, state.error) == (True, "")
            await bench.hosts.close()
