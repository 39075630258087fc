"""Hosts for tests: SSH servers of this machine, each on a port of its own with keys of its own.

They share one kernel and one Python, so what they show of other machines is limited: agents,
directories, keys and connections are real, the network between the machines is not.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import msgspec
import psutil
import yaml

from bullpen.placements.base import Key
from bullpen.placements.local import layout
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.processes import ProcessId
from bullpen.provisioners.baremetal.agent import STATE, AgentState
from support.real_service import Service, eventually

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
PYTHON = "/usr/bin/python3"
START_SECONDS_MAX = 120.0
END_SECONDS_MAX = 120.0

CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {place}/host_key
AuthorizedKeysFile {place}/authorized_keys
TrustedUserCAKeys {place}/trusted_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""


def has_sshd() -> bool:
    return Path(SSHD).exists()


@dataclass(kw_only=True)
class SshHost:
    """A host that can be taken down and brought back."""

    name: str
    place: Path
    port: int
    key: asyncssh.SSHKey = field(repr=False)
    slots: int = 2
    process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        return self.place / "bullpen"

    @property
    def settings(self) -> dict[str, Any]:
        """As in ``parameters.hosts`` of a ProviderConfig."""
        return {
            "name": self.name,
            "address": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "hostKey": self.key.export_public_key().decode().strip(),
            "slots": self.slots,
            "python": PYTHON,
            "directory": str(self.directory),
        }

    def up(self) -> None:
        command = [SSHD, "-D", "-e", "-f", str(self.place / "sshd_config")]
        with open(self.place / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(command, stderr=log, start_new_session=True)
        eventually(self._listens, seconds=START_SECONDS_MAX)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def down(self) -> None:
        """End the server and its connections; what it has started goes on."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "sshd":
                    child.kill()
        self.process.kill()
        self.process.wait()
        self.process = None

    def directories(self) -> list[Path]:
        """The directories of agents that run, or have run and left something."""
        return sorted(self.directory.glob("labs/*/*"))

    def agents(self) -> dict[str, ProcessId]:
        """The agents that run, by their directories."""
        found = {}
        for path in self.directory.glob(f"labs/*/*/{STATE}"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                state = msgspec.json.decode(path.read_bytes(), type=AgentState)
                if state.process.alive():
                    found[str(path.parent)] = state.process
        return found

    def end_agents(self) -> None:
        for agent in self.agents().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGTERM)
        eventually(lambda: not self.agents(), seconds=END_SECONDS_MAX)

    def process_of(self, key: Key) -> ProcessId | None:
        """The exporter of an instance here."""
        for place in self.directory.glob("labs/*/*"):
            found = layout.read_process(Layout(place).instance(key))
            if found is not None and found.alive():
                return found
        return None


@dataclass(kw_only=True)
class SshHosts:
    hosts: dict[str, SshHost]
    client_key: asyncssh.SSHKey = field(repr=False)

    @property
    def secret(self) -> dict[str, bytes]:
        return {"ssh-privatekey": self.client_key.export_private_key()}

    @property
    def parameters(self) -> dict[str, Any]:
        return {"hosts": [host.settings for host in self.hosts.values()]}


def apply_hosts(service: Service, hosts: SshHosts) -> None:
    """Create the ProviderConfig ``bench`` with these hosts, and its Secret."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bench-key"},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in hosts.secret.items()},
    }
    config = {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "kind": "ProviderConfig",
        "metadata": {"name": "bench"},
        "spec": {
            "provisioner": "qemu-baremetal.jumpstarter.dev",
            "credentialsSecretRef": {"name": "bench-key"},
            "parameters": hosts.parameters,
        },
    }
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([secret, config]))


@contextlib.contextmanager
def ssh_hosts(place: Path, **slots: int) -> Iterator[SshHosts]:
    """Hosts by name with so many slots. All tests share their environments: copied only once."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    client = asyncssh.generate_private_key("ssh-ed25519")
    made = SshHosts(hosts={}, client_key=client)
    shared = place.parents[1] / "environments"
    shared.mkdir(exist_ok=True)
    place.mkdir()
    for path in (place, *place.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    try:
        for name, count in slots.items():
            host = _host(place / name, name, count, client)
            host.directory.mkdir(parents=True)
            (host.directory / "environments").symlink_to(shared)
            made.hosts[name] = host
            host.up()
        yield made
    finally:
        for host in made.hosts.values():
            if host.process is not None:
                host.down()
            host.end_agents()


def _host(place: Path, name: str, slots: int, client: asyncssh.SSHKey) -> SshHost:
    place.mkdir(parents=True)
    key = asyncssh.generate_private_key("ssh-ed25519")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (place / "host_key").write_bytes(key.export_private_key())
    (place / "host_key").chmod(0o600)
    (place / "authorized_keys").write_bytes(client.export_public_key())
    (place / "trusted_keys").touch()
    (place / "sshd_config").write_text(CONFIG.format(port=port, place=place))
    return SshHost(name=name, place=place, port=port, key=key, slots=slots)
