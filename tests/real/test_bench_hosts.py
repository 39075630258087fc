"""Pools on other hosts, with real SSH servers: from a manifest to a shell, and hosts that fail."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml

from support.cluster_lab import ClusterLab, stand_in
from support.qemu_pools import shell, until
from support.real_service import (
    BIN,
    Service,
    eventually,
    free_port_base,
    kill_family,
    running_service,
)
from support.ssh_hosts import SshHost, SshHosts, apply_hosts, has_sshd, ssh_hosts

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "hosts-pool.yaml"
NAME = "bench-uboot"
SECONDS_MAX = 150.0

BOOT = """\
import signal
from jumpstarter.utils.env import env
with env() as client:
    with client.serial.pexpect() as console:
        client.power.on()
        console.expect("U-Boot", timeout=60)
        print("it boots", flush=True)
    {then}
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path / "hosts", one=1, two=1) as found:
        yield found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Service]:
    # Exporters that outlive the service must find it again.
    with running_service(tmp_path, "--port-base", str(free_port_base())) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterLab]:
    with stand_in(tmp_path / "control-plane") as kubeconfig:
        made = ClusterLab(tmp_path / "lab", kubeconfig)
        try:
            yield made
        finally:
            made.end_all()


def apply_pool(service: Service, **spec: Any) -> None:
    profile, pool = yaml.safe_load_all(EXAMPLE.read_text())
    pool["spec"] |= spec
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([profile, pool]))


def reachable(service: Service) -> dict[str, Any]:
    status: Any = service.get("providerconfig", "bench").get("status") or {}
    found = [each for each in status.get("conditions", ()) if each["type"] == "Reachable"]
    return found[0] if found else {}


def until_reachable(service: Service) -> None:
    eventually(
        lambda: reachable(service).get("status") == "True",
        seconds=SECONDS_MAX,
        what="hosts that answer",
    )


def hosts_of(service: Service) -> dict[str, str]:
    """The host of every Exporter."""
    found = json.loads(service.kubectl("get", "exporters", "-o", "json").stdout)["items"]
    records = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in found}
    return {
        name: annotations["virtualtarget.jumpstarter.dev/host"].removeprefix("bench/")
        for name, annotations in records.items()
    }


def used_slots(service: Service) -> dict[str, int]:
    """The slots in use of every host that answers, by the status of their ProviderConfig."""
    status: Any = service.get("providerconfig", "bench")["status"]
    return {each["name"]: each.get("used", 0) for each in status["hosts"] if each["answering"]}


def no_agents(host: SshHost) -> bool:
    return not host.agents()


def test_a_manifest_becomes_machines_on_two_hosts_and_one_boots_in_a_shell(
    lab: Service, hosts: SshHosts
) -> None:
    apply_hosts(lab, hosts)
    apply_pool(lab, minAvailableReplicas=2, maxReplicas=2)
    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=2)
    assert sorted(hosts_of(lab).values()) == ["one", "two"], "each host has one slot"
    eventually(
        lambda: used_slots(lab) == {"one": 1, "two": 1},
        seconds=SECONDS_MAX,
        what="used slots in the status",
    )

    process = shell(lab, NAME, str(BIN / "python"), "-c", BOOT.format(then="pass"))
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    assert "it boots" in said
    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=2)

    secrets = {hosts.client_key.export_private_key().decode().splitlines()[2]}
    for host in hosts.hosts.values():
        for path in host.directory.glob("labs/**/*"):
            if path.is_file() and not path.is_symlink():
                text = path.read_text(errors="replace")
                assert not any(secret in text for secret in secrets), path
    lab.kubectl("delete", f"exporterset/{NAME}")
    lab.kubectl("delete", "providerconfig/bench", "--timeout=60s")
    for host in hosts.hosts.values():
        eventually(partial(no_agents, host), seconds=120, what="the end of its agent")


def test_a_host_that_is_down_is_named_and_its_lease_goes_on(lab: Service, hosts: SshHosts) -> None:
    apply_hosts(lab, hosts)
    apply_pool(lab, minAvailableReplicas=0, maxReplicas=2)
    until_reachable(lab)
    holder = shell(lab, NAME, str(BIN / "python"), "-uc", BOOT.format(then="signal.pause()"))
    assert holder.stdout is not None
    try:
        for line in holder.stdout:
            if "it boots" in line:
                break
        (where,) = hosts_of(lab).values()
        hosts.hosts[where].down()
        eventually(
            lambda: f"host {where}" in reachable(lab).get("message", ""),
            seconds=SECONDS_MAX,
            what="a host that does not answer",
        )
        status: Any = lab.get("providerconfig", "bench")["status"]
        assert status["instances"] == 1
        for command in ("status", "doctor"):
            said = lab.bullpen(command, check=False).stdout
            assert f"host {where}: " in said, command
        hosts.hosts[where].up()
        until_reachable(lab)
        assert list(hosts_of(lab).values()) == [where], "it was not made again"
        assert holder.poll() is None
    finally:
        kill_family(holder)
        holder.stdout.close()


def test_a_host_with_another_key_and_a_key_that_is_refused_are_named(
    lab: Service, hosts: SshHosts
) -> None:
    right = hosts.hosts["one"].key
    hosts.hosts["one"].key = asyncssh.generate_private_key("ssh-ed25519")
    (hosts.hosts["two"].place / "authorized_keys").write_text("")
    apply_hosts(lab, hosts)
    eventually(
        lambda: "another key than hostKey" in reachable(lab).get("message", ""),
        seconds=SECONDS_MAX,
        what="the refusal of a host",
    )
    assert "host two" in reachable(lab)["message"]
    assert "authorized_keys" in reachable(lab)["message"]
    assert hosts.hosts["one"].agents() == {}

    hosts.hosts["one"].key = right
    (hosts.hosts["two"].place / "authorized_keys").write_bytes(hosts.client_key.export_public_key())
    apply_hosts(lab, hosts)
    until_reachable(lab)


def test_a_killed_service_finds_its_machines_on_the_hosts_again(
    lab: Service, hosts: SshHosts
) -> None:
    apply_hosts(lab, hosts)
    apply_pool(lab, minAvailableReplicas=2, maxReplicas=2)
    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=2)
    before = hosts_of(lab)
    running = {
        name: hosts.hosts[where].process_of(("default", name)) for name, where in before.items()
    }
    assert all(running.values())
    lab.stop(signal.SIGKILL)
    lab.start()
    until_reachable(lab)
    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=2)
    assert hosts_of(lab) == before
    for name, where in before.items():
        assert hosts.hosts[where].process_of(("default", name)) == running[name]


def test_a_provisioner_in_a_process_of_its_own_keeps_pools_on_hosts(
    cluster: ClusterLab, hosts: SshHosts
) -> None:
    """As in a cluster: it has no placement of its own, and asks for no Pods."""
    cluster.controller("controller-a")
    cluster.leader()
    worker = cluster.provisioner("bench", "qemu-baremetal.jumpstarter.dev")
    eventually(lambda: worker.ready, seconds=120, what="the provisioner")
    apply_hosts(cluster, hosts)
    apply_pool(cluster, minAvailableReplicas=2, maxReplicas=2)
    until(cluster, NAME, seconds=SECONDS_MAX, availableReplicas=2)
    assert sorted(hosts_of(cluster).values()) == ["one", "two"]
    assert not [asked for asked in worker.requests() if "pods" in asked]

    running = {
        name: hosts.hosts[where].process_of(("default", name))
        for name, where in hosts_of(cluster).items()
    }
    assert worker.end() == 0
    again = cluster.provisioner("bench-2", "qemu-baremetal.jumpstarter.dev")
    eventually(lambda: again.ready, seconds=120, what="the provisioner")
    until_reachable(cluster)
    for name, where in hosts_of(cluster).items():
        assert hosts.hosts[where].process_of(("default", name)) == running[name]
    cluster.kubectl("delete", f"exporterset/{NAME}")
    eventually(lambda: not hosts_of(cluster), seconds=120, what="everything being gone")
