"""The how-tos about pools and their examples, run as they are written, with real QEMU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from test_kubectl import needs_kubectl

from bullpen.core.leases.lease_trace import Step
from support.container_image import has_podman
from support.doc_pages import ROOT, commands, files
from support.real_service import BIN, eventually
from support.ssh_hosts import has_sshd
from support.trace_collector import collecting

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

READY_SECONDS_MAX = 120.0
SCRIPT_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 60.0

PRELUDE = """\
set -eum
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"""
"""Stop at the first failure, with jobs as in a terminal; what was started does not stay."""


def follow(page: str, directory: Path) -> str:
    """Do what a page says in a fresh directory; what its commands printed."""
    first, *rest = commands(f"how-to/{page}")
    *before, start = first.splitlines()
    assert start.startswith("bullpen up --data ./lab")
    # The repository's own environment and examples, where a reader has them.
    (directory / ".venv").symlink_to(BIN.parent)
    (directory / "examples").symlink_to(ROOT / "examples")
    for name, content in files(f"how-to/{page}").items():
        (directory / name).write_text(content)
    environment = surroundings(directory)
    service = started("\n".join([*before, f"exec {start}"]), directory)
    try:
        done = subprocess.run(
            ["bash", "-c", "\n".join([PRELUDE, *rest])],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SCRIPT_SECONDS_MAX,
            check=False,
        )
    finally:
        stop(service)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def surroundings(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "BULLPEN_PORT_BASE": "0",
        "HOME": str(directory),
        "XDG_RUNTIME_DIR": str(directory),
    }


def started(script: str, directory: Path) -> subprocess.Popen[bytes]:
    """The service that a script runs, once it is ready."""
    service = subprocess.Popen(
        ["bash", "-c", f"set -eu\n{script}"], cwd=directory, env=surroundings(directory)
    )
    try:
        eventually((directory / "lab" / "endpoints.json").exists, seconds=READY_SECONDS_MAX)
    except BaseException:
        stop(service)
        raise
    return service


def stop(service: subprocess.Popen[bytes]) -> None:
    service.send_signal(signal.SIGTERM)
    assert service.wait(STOP_SECONDS_MAX) == 0


def test_the_pool_of_u_boot_boards(tmp_path: Path) -> None:
    said = follow("pool-uboot.md", tmp_path)
    assert "U-Boot answered." in said
    assert "Recycle" in said
    assert "by rule MinAvailable" in said


def test_a_runner_finds_the_cache_of_the_one_before(tmp_path: Path) -> None:
    said = follow("runner-fleet.md", tmp_path)
    found = re.findall(r"the cache is (\w+)", said)
    assert found == ["cold", "warm", "warm"]
    assert "runners-0 leaves" in said
    assert "by rule RemovedByName" in said


def test_a_desktop_has_a_screen_and_its_home_is_kept(tmp_path: Path) -> None:
    said = follow("desktop-pool.md", tmp_path)
    assert len(re.findall(r"the screen is \d+x\d+, ", said)) == 4
    first, after_a_night, *after_a_shrink = re.findall(r"this home (\w+ \w+)", said)
    assert (first, after_a_night) == ("is new", "was used")
    assert sorted(after_a_shrink) == ["is new", "was used"]


def test_the_pool_of_simulators(tmp_path: Path) -> None:
    assert "cortex-m3 is ready" in follow("pool-program.md", tmp_path)


def test_the_pools_of_boards_with_a_microcontroller(tmp_path: Path) -> None:
    said = follow("pool-mcu.md", tmp_path)
    assert "uno is ready" in said
    assert "cortex-m3 is ready" in said


def test_a_bench_has_two_boards_with_consoles_of_their_own(tmp_path: Path) -> None:
    said = follow("bench.md", tmp_path)
    assert "board answered: arm" in said
    assert "peer answered: arm" in said


def test_a_lease_is_traced_to_the_first_byte_of_its_target(tmp_path: Path) -> None:
    with collecting(port=4318) as (_, spans):
        said = follow("trace-leases.md", tmp_path)
    # The last command of the page prints the uids of all leases.
    (uid,) = said.splitlines()[-1].split()
    traced = {span.name: span for span in spans if span.trace_id.hex() == uid.replace("-", "")}
    assert set(traced) == {step.value for step in Step}
    root = traced.pop("lease")
    assert {span.parent_span_id for span in traced.values()} == {root.span_id}
    assert not root.parent_span_id
    assert all(span.start_time_unix_nano >= root.start_time_unix_nano for span in traced.values())
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in traced.values())
    assert traced["first byte"].end_time_unix_nano >= traced["Dial"].start_time_unix_nano


def test_a_webhook_is_told_what_happens(tmp_path: Path) -> None:
    said = follow("webhooks.md", tmp_path)
    told = re.findall(r"^dev\.bullpen\.(\S+) (leases|exporters)/", said, re.MULTILINE)
    assert [event for event, _ in told] == [
        "exporter.online",
        "lease.requested",
        "lease.assigned",
        "lease.ended",
        "exporter.offline",
    ]


def test_the_pool_of_android_devices(tmp_path: Path) -> None:
    said = follow("pool-android.md", tmp_path)
    assert re.search(r"^emulator-\d+\tdevice$", said, re.MULTILINE)
    assert "\nhello from the device\n" in said


def test_the_pool_of_boards_in_renode(tmp_path: Path) -> None:
    said = follow("pool-renode.md", tmp_path)
    assert "cortex-m3 is ready" in said
    assert "Current virtual time" in said


@pytest.mark.skipif(not has_podman(), reason="podman and runc are not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="instances need users of their own")
def test_the_pool_of_containers(tmp_path: Path) -> None:
    said = follow("pool-container.md", tmp_path)
    assert "hello from the container" in said
    assert re.search(r'"containers" deleted$', said.rstrip(), re.MULTILINE)


@pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="the page starts SSH servers as root")
def test_the_pool_on_several_hosts(tmp_path: Path) -> None:
    said = follow("pool-hosts.md", tmp_path)
    assert re.search(r"bench-uboot-\S+ +bench/host-1\n", said)
    assert re.search(r"bench-uboot-\S+ +bench/host-2\n", said)
    assert "U-Boot 20" in said


@pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed")
def test_the_pool_of_ec2_instances(tmp_path: Path) -> None:
    said = follow("pool-ec2.md", tmp_path)
    assert re.search(r"I am i-[0-9a-f]+\n", said)
    assert "No provider lists a machine of this lab." in said


def test_the_pool_of_cuttlefish_devices(tmp_path: Path) -> None:
    """With the stand-in, and Debian's adb: Cuttlefish itself was never seen."""
    said = follow("pool-cuttlefish.md", tmp_path)
    assert re.search(r"^127\.0\.0\.1:\d+\tdevice$", said, re.MULTILINE)
    assert "\nhello from the device\n" in said
    assert "\nstand-in for Cuttlefish\n" in said
    assert "No provider lists a machine of this lab." in said


def test_the_pool_of_corellium_devices(tmp_path: Path) -> None:
    """With the stand-in: Corellium itself was never seen."""
    said = follow("pool-corellium.md", tmp_path)
    assert "the device answered hello" in said
    assert "the device was restarted" in said
    assert "No provider lists a machine of this lab." in said


@pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed")
def test_one_board_in_four_fidelities(tmp_path: Path) -> None:
    said = follow("fidelity.md", tmp_path)
    simulation, machine, cloud = (
        said.find(text) for text in ("the gateway is simulated", "U-Boot 20", "the gateway is i-")
    )
    assert 0 < simulation < machine < cloud
    leased = said.split("SELECTOR", maxsplit=1)[1]
    for name in ("gateway-simulation-", "gateway-machine-", "shelf-1", "gateway-cloud-"):
        assert name in leased
    shown = said.split("=== status of ")[1:]
    kinds = ("simulation", "machine", "cloud")
    assert [each.split("\n")[0].rpartition("gateway-")[2] for each in shown] == [
        *kinds[:2], "exporter/shelf-1", kinds[2],
    ]  # fmt: skip
    for each in shown:
        assert re.search(r"^ *Conditions?:|conditions", each, re.MULTILINE), each


def test_the_pool_of_boards_that_boot_linux(tmp_path: Path) -> None:
    said = follow("pool-linux.md", tmp_path)
    assert said.count("Linux booted, and its disk was empty.") == 2
    assert said.count("cloud-amd64 is up") == 2


def test_the_shelf_comes_first_and_the_pool_takes_what_is_too_many(tmp_path: Path) -> None:
    said = follow("mixed-lab.md", tmp_path)
    alone, both = said.split("by rule", maxsplit=1)[0].split("CLIENT", maxsplit=1)
    assert "shelf-1" in alone
    assert "gateway-0" not in alone, "the shelf was free, so the pool stayed empty"
    assert "gateway-0" in both
    assert "by rule LeasesWaiting" in said


def test_a_board_and_its_peer_are_claimed_together(tmp_path: Path) -> None:
    said = follow("claims.md", tmp_path)
    assert "dut: board-brno\npeer: can-brno\n" in said
    waits = said.split("deviceclaim.device.jumpstarter.dev/second condition met", maxsplit=1)[1]
    assert "can-brno" in waits.split("patched", maxsplit=1)[0], "it says which target is missing"
    assert re.search(r"bench +default +False +Released", said)
    assert re.search(r"second +default +True +Allocated", said)
    story = said.split("claim first created", maxsplit=1)[1]
    assert re.findall(r"^dut +(\w+) +(\w+-\w+)", story, re.MULTILINE) == [
        ("hardware", "gateway-brno"),
        ("cloud", "cloud-brno"),
        ("qemu", "qemu-prague"),
        ("hardware", "gateway-brno"),
    ]
    assert "claim nine: Reserved" in story
    assert "U-Boot answered." in story


@needs_kubectl(28, "auth whoami")
def test_a_team_gets_its_own_namespace(tmp_path: Path) -> None:
    said = follow("access-control.md", tmp_path)
    assert "refused, as it should be" in said
    assert "refused: adam cannot grant rights that he does not have" in said
    may, may_not, *_ = [line for line in said.splitlines() if line in ("yes", "no")]
    assert (may, may_not) == ("yes", "no")
    assert re.search(r"Username +alice\nGroups +\[team-a system:authenticated\]", said)
    log = said.split("OUTCOME", maxsplit=1)[1]
    assert re.search(r"alice +list +leases +default +127.0.0.1 +403 Forbidden", log)
    assert re.search(r"bullpen:admin as adam +create +rolebindings +team-a", log)


def test_pytest_leases_targets(tmp_path: Path) -> None:
    assert follow("pytest.md", tmp_path).count("1 passed") == 2


def test_a_board_is_taken_out_of_service_and_a_lease_released(tmp_path: Path) -> None:
    said = follow("out-of-service.md", tmp_path)
    assert "exporter desk disabled" in said
    assert "every exporter that matches board=rpi4 is disabled" in said
    assert re.search(r"bullpen:admin +patch +leases +", said), "the audit log says who released it"


def test_credentials_are_rotated(tmp_path: Path) -> None:
    said = follow("rotate-credentials.md", tmp_path)
    assert "the old token is refused, as it should be" in said
    assert "desk.yaml has the current token; the rest of it is unchanged" in said


def test_a_policy_says_who_may_lease_what(tmp_path: Path) -> None:
    said = follow("access-policies.md", tmp_path)
    assert "refused: too long" in said
    assert "refused, as it should be" in said


def test_a_lab_for_a_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOST", "localhost")
    assert "hello, board" in follow("shared-lab.md", tmp_path)


def test_a_fleet_grows_and_shrinks_by_name(tmp_path: Path) -> None:
    said = follow("lasting-pools.md", tmp_path)
    assert "runners-1 leaves" in said
    _, left = said.split("leaving: none; staying: 2\n")
    assert re.findall(r"^runners-\d", left, re.MULTILINE) == ["runners-0", "runners-2"]


def test_a_lab_is_backed_up_and_restored(tmp_path: Path) -> None:
    first, restore, again = commands("how-to/back-up-and-restore.md")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    service = started(first.replace("bullpen up", "exec bullpen up"), tmp_path)
    kubectl = ("kubectl", "--kubeconfig", str(tmp_path / "lab" / "kubeconfig"))
    board = ("create", "serviceaccount", "kept")
    subprocess.run([*kubectl, *board], check=True, cwd=tmp_path)
    stop(service)
    done = subprocess.run(
        ["bash", "-c", PRELUDE + restore],
        cwd=tmp_path,
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"^state-\S+\.db", done.stdout, re.MULTILINE)
    service = started(f"export PATH=$PWD/.venv/bin:$PATH\nexec {again}", tmp_path)
    try:
        found = ("get", "serviceaccount", "kept", "-o", "name")
        subprocess.run([*kubectl, *found], check=True, cwd=tmp_path)
    finally:
        stop(service)


def test_the_dashboard(tmp_path: Path) -> None:
    assert "/dashboard/#link=" in follow("dashboard.md", tmp_path)
