"""Virtual targets on this machine: real exporters, real QEMU, and what ``kill -9`` leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from real_placement import (
    UBOOT,
    OtherSupervisor,
    alive,
    exporter_config,
    exporter_process,
    hook_before_leases,
    leased,
    sockets,
    spec_for,
    targets,
)

from bullpen.api.exporter_template import Driver
from bullpen.errors import ProgramMissing, Refused, Unreachable
from bullpen.placements.local import layout
from bullpen.placements.local.layout import Layout
from bullpen.provisioners.base import ExitReason, InstancePhase
from bullpen.provisioners.mock import NAME as MOCK
from bullpen.provisioners.qemu import NAME as QEMU
from support.real_service import Service, eventually, free_port_base

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STOP_SECONDS_MAX = 180.0
WAIT_SECONDS_MAX = 180.0


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose path is longer than a socket's may be."""
    path = tmp_path / ("long-" * 20) / "data"
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(sockets(path))


def assert_nothing_left(data: Path) -> None:
    left = [path for path in data.rglob("*") if path.name not in ("instances", "cache")]
    assert left == []
    assert list(sockets(data).iterdir()) == []


def machines(process: psutil.Process) -> list[psutil.Process]:
    return [
        child for child in process.children(recursive=True) if child.name().startswith("qemu-sys")
    ]


async def until(done: Callable[[], object]) -> None:
    """Look until ``done`` is true, while the supervisor in this process goes on."""
    await asyncio.to_thread(eventually, done, seconds=WAIT_SECONDS_MAX)


async def test_a_lessee_boots_uboot_and_nothing_of_it_is_left(service: Service, data: Path) -> None:
    console = (
        "import os, sys\n"
        "from jumpstarter.common.utils import env\n"
        "with env() as client:\n"
        "    client.power.on()\n"
        "    with client.serial.pexpect() as console:\n"
        "        console.logfile_read = sys.stdout.buffer\n"
        "        console.expect('autoboot', timeout=120)\n"
    )
    async with targets(service, data) as lab:
        key = await lab.qemu_target("boots")
        exporter = lab.exporter(key)
        client = service.data / "clients" / "default.yaml"
        said = await asyncio.to_thread(
            service.jmp, "shell", "--client-config", str(client), "-l", "target=boots", "--",
            "python", "-c", console,
        )  # fmt: skip
        assert "U-Boot 20" in said.stdout
        ended = await lab.until(key, InstancePhase.EXITED)

        assert ended.reason is ExitReason.COMPLETED
        assert alive([exporter]) == []
        directory, evidence = (
            lab.placement.layout.instance(key),
            {"instance.json", "process.json", "log"},
        )
        await until(lambda: {path.name for path in directory.iterdir()} == evidence)
        assert "U-Boot" not in lab.log(key), "a console is the lessee's, not the log's"
        await lab.qemu.remove(key)
    assert_nothing_left(data)


async def test_a_target_is_not_started_on_a_host_without_qemu(
    service: Service, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with targets(service, data) as lab:
        with monkeypatch.context() as patched:
            patched.setenv("PATH", str(data))
            with pytest.raises(ProgramMissing, match="apt-get install qemu-system-arm qemu-utils"):
                await lab.qemu_target("missing")
        key = await lab.qemu_target("installed")
        await lab.qemu.remove(key)
    assert_nothing_left(data)


async def test_a_data_directory_behind_a_link_is_no_other_than_one_without(
    service: Service, data: Path, tmp_path: Path
) -> None:
    data.mkdir(parents=True, exist_ok=True)
    link = tmp_path / "link"
    link.symlink_to(data)
    async with targets(service, link) as lab:
        key = await lab.qemu_target("linked")
        with leased(service, "linked"):
            assert len(machines(lab.exporter(key))) == 1
            (directory,) = (data / "instances").glob("default.linked")
            assert list(directory.rglob("root.overlay")), "it writes to its own directory"
    assert_nothing_left(data)


async def test_a_killed_exporter_takes_its_machine_along(service: Service, data: Path) -> None:
    async with targets(service, data) as lab:
        key = await lab.qemu_target("killed")
        with leased(service, "killed", abandon=True):
            exporter = lab.exporter(key)
            (machine,) = machines(exporter)
            exporter.kill()
            ended = await lab.until(key, InstancePhase.EXITED)
            assert (ended.reason, ended.detail) == (
                ExitReason.CRASHED,
                "the exporter was killed by SIGKILL",
            )
            assert alive([machine]) == []
    assert_nothing_left(data)


async def test_a_killed_machine_can_be_switched_on_again(service: Service, data: Path) -> None:
    async with targets(service, data) as lab:
        key = await lab.qemu_target("unplugged")
        with leased(service, "unplugged") as lessee:
            (first,) = machines(lab.exporter(key))
            first.kill()
            eventually(lambda: alive([first]) == [])
            lessee.run("j power on")
            (second,) = machines(lab.exporter(key))
            assert second != first
        assert (await lab.until(key, InstancePhase.EXITED)).reason is ExitReason.COMPLETED
    assert_nothing_left(data)


async def test_a_killed_zygote_is_replaced_and_takes_everything_along(
    service: Service, data: Path
) -> None:
    async with targets(service, data) as lab:
        key = await lab.qemu_target("orphaned")
        other = await lab.mock_target("orphaned-too")
        with leased(service, "orphaned", abandon=True):
            zygote = lab.zygote()
            everybody = zygote.children(recursive=True)
            assert len(machines(zygote)) == 1
            zygote.kill()
            for one in (key, other):
                assert (await lab.until(one, InstancePhase.EXITED)).reason is ExitReason.LOST
            assert alive(everybody) == []
        await lab.qemu.remove(key)
        await lab.mock.remove(other)
        await lab.mock_target("afterwards")
        assert lab.zygote() != zygote
    assert_nothing_left(data)


def supervised(service: Service, data: Path, name: str, *, orphan: float = 30.0) -> OtherSupervisor:
    specs: list[dict[str, Any]] = [
        {
            "provisioner": QEMU,
            "config": exporter_config(service, name),
            "parameters": UBOOT,
            "single_use": False,
        },
        {
            "provisioner": MOCK,
            "config": exporter_config(service, f"{name}-mock"),
            "single_use": True,
        },
    ]
    return OtherSupervisor(data, specs, orphan=orphan)


async def test_what_a_killed_supervisor_leaves_is_taken_over(service: Service, data: Path) -> None:
    first = await asyncio.to_thread(supervised, service, data, "adopted")
    with leased(service, "adopted", abandon=True):
        before = first.whole()
        assert len(machines(before[0])) == 1
        first.kill()
        async with targets(service, data) as lab:
            found = await lab.placement.observe_all()
            assert [instance.phase for instance in found] == [InstancePhase.RUNNING] * 2
            assert alive(before) == before, "nobody was restarted"
            assert len(machines(before[0])) == 1
            removed = lab.exporter(("default", "adopted-mock"))
            await lab.mock.remove(("default", "adopted-mock"))
            assert alive([removed]) == []
            lab.exporter(("default", "adopted")).kill()
            ended = await lab.until(("default", "adopted"), InstancePhase.EXITED)
            assert ended.reason is ExitReason.CRASHED
            await lab.mock_target("adopted-new")
            assert lab.zygote() == before[0]
    assert alive(before) == []
    assert_nothing_left(data)


async def test_a_start_that_fails_late_leaves_what_it_took_over(
    service: Service, data: Path
) -> None:
    first = await asyncio.to_thread(supervised, service, data, "left")
    before = first.whole()
    first.kill()
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with targets(service, data):
            raise Refused("a port cannot be used")
    assert alive(before) == before, "it was not theirs to end"
    async with targets(service, data) as lab:
        found = await lab.placement.observe_all()
        assert [instance.phase for instance in found] == [InstancePhase.RUNNING] * 2
    assert alive(before) == []
    assert_nothing_left(data)


async def test_a_zygote_that_hangs_is_replaced(service: Service, data: Path) -> None:
    """It is stopped, not dead: its connection stays open and nothing else ever ends it."""
    async with targets(service, data) as lab:
        key = await lab.mock_target("frozen-zygote")
        zygote = lab.zygote()
        everybody = zygote.children(recursive=True)
        zygote.send_signal(signal.SIGSTOP)
        await until(lambda: lab.placement.problem)
        assert "does not answer" in lab.placement.problem
        found = await lab.until(key, InstancePhase.EXITED)
        assert found.reason is ExitReason.LOST
        assert "did not answer" in found.detail
        assert alive([zygote, *everybody]) == []
        await lab.mock.remove(key)
        await lab.mock_target("frozen-zygote-after")
        assert lab.zygote() != zygote
        await until(lambda: not lab.placement.problem)
    assert_nothing_left(data)


async def test_a_zygote_that_hangs_is_replaced_by_the_successor(
    service: Service, data: Path
) -> None:
    first = await asyncio.to_thread(supervised, service, data, "hanging")
    everybody = first.whole()
    everybody[0].send_signal(signal.SIGSTOP)
    first.kill()
    async with targets(service, data) as lab:
        found = await lab.placement.observe_all()
        assert [instance.reason for instance in found] == [ExitReason.LOST] * 2
        assert alive(everybody) == []
        await lab.mock_target("hanging-new")
    assert_nothing_left(data)


async def test_what_ended_meanwhile_is_known_to_the_successor(service: Service, data: Path) -> None:
    first = await asyncio.to_thread(supervised, service, data, "meanwhile")
    first.kill()
    exporter = exporter_process(Layout(data), ("default", "meanwhile-mock"))
    exporter.kill()
    eventually(lambda: alive([exporter]) == [])
    async with targets(service, data) as lab:
        ended = await lab.until(("default", "meanwhile-mock"), InstancePhase.EXITED)
        assert (ended.reason, ended.owner_uid) == (ExitReason.CRASHED, "uid-meanwhile-mock")
        await lab.until(("default", "meanwhile"), InstancePhase.RUNNING)
    assert_nothing_left(data)


async def test_orphans_end_by_themselves_and_leave_nothing(service: Service, data: Path) -> None:
    first = await asyncio.to_thread(supervised, service, data, "alone", orphan=1.0)
    with leased(service, "alone", abandon=True):
        everybody = first.whole()
        first.kill()
        eventually(lambda: alive(everybody) == [], seconds=120, what="the orphans' end")
    assert_nothing_left(data)


async def test_exporters_end_by_themselves_when_all_above_them_are_killed(
    service: Service, data: Path
) -> None:
    first = await asyncio.to_thread(supervised, service, data, "beheaded")
    with leased(service, "beheaded", abandon=True):
        everybody = first.whole()
        assert len(machines(everybody[0])) == 1
        first.process.kill()
        everybody[0].kill()
        first.kill()
        eventually(lambda: alive(everybody) == [], seconds=120, what="the exporters' end")
    eventually(lambda: list(Layout(data).found()) == [], what="their directories' removal")
    async with targets(service, data) as lab:
        assert await lab.placement.observe_all() == ()
    assert_nothing_left(data)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3, 2.0])
async def test_stopping_while_the_zygote_starts_leaves_nothing(
    service: Service, data: Path, seconds: float
) -> None:
    async with targets(service, data) as lab:
        lab.placement.warm()
        await asyncio.sleep(seconds)
    found = [item for item in psutil.process_iter() if str(data) in " ".join(_arguments(item))]
    assert found == []
    assert_nothing_left(data)


async def test_a_stop_that_nobody_waits_for_any_more_is_finished(
    service: Service, data: Path
) -> None:
    """A controller that is stopped gives up what it does; the end of the service waited for it."""
    async with asyncio.timeout(STOP_SECONDS_MAX):
        async with targets(service, data) as lab:
            key = await lab.mock_target("half-way")
            removing = asyncio.create_task(lab.mock.remove(key))
            await asyncio.sleep(0)
            removing.cancel()
    assert_nothing_left(data)


async def test_a_stopped_zygote_is_killed_in_the_end(service: Service, data: Path) -> None:
    async with targets(service, data) as lab:
        await lab.mock_target("frozen")
        zygote, exporter = lab.zygote(), lab.exporter(("default", "frozen"))
        zygote.send_signal(signal.SIGSTOP)
    assert alive([zygote, exporter]) == []
    assert_nothing_left(data)


async def test_a_process_that_escapes_its_exporter_does_not_survive_it(
    service: Service, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = await asyncio.to_thread(exporter_config, service, "escaped")
    # A number nobody else sleeps for, not even a run of this test that was cut off.
    marker = f"9{os.getpid()}"
    hook_before_leases(monkeypatch, f"setsid -f sleep {marker}")
    async with targets(service, data) as lab:
        spec = spec_for(config, MOCK)
        await lab.mock.ensure(spec)
        await lab.until(spec.key, InstancePhase.RUNNING)
        with leased(service, "escaped", abandon=True):
            (escaped,) = [
                process for process in psutil.process_iter() if marker in _arguments(process)
            ]
            assert os.getsid(escaped.pid) != lab.exporter(spec.key).pid
            lab.exporter(spec.key).kill()
            await lab.until(spec.key, InstancePhase.EXITED)
            assert alive([escaped]) == []
    assert_nothing_left(data)


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


async def test_a_reused_one_is_reset_before_it_is_offered_again(
    service: Service, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = await asyncio.to_thread(exporter_config, service, "reused")
    hook_before_leases(monkeypatch, 'touch "$TMPDIR/left" && setsid -f sleep 876543')
    async with targets(service, data) as lab:
        spec = spec_for(config, QEMU, parameters=UBOOT, single_use=False)
        await lab.qemu.ensure(spec)
        await lab.until(spec.key, InstancePhase.RUNNING)
        exporter = lab.exporter(spec.key)
        temporary = lab.placement.layout.instance(spec.key) / "tmp"
        with leased(service, "reused"):
            first = exporter.children(recursive=True)
            assert len(machines(exporter)) == 1
            assert (temporary / "left").exists()
            assert list(temporary.rglob("root.overlay"))
        status = "Available"
        eventually(lambda: service.exporter_status("reused") == status, seconds=120)
        assert alive(first) == []
        assert not [p for p in psutil.process_iter() if "876543" in _arguments(p)]
        assert [path for path in temporary.rglob("*") if path.is_file()] == []
        assert alive([exporter]) == [exporter]
        await asyncio.to_thread(_lease_once, service, "reused")
    assert_nothing_left(data)


def _lease_once(service: Service, name: str) -> None:
    with leased(service, name):
        pass


async def test_a_machine_runs_on_while_the_service_is_killed_and_comes_back(
    tmp_path: Path, data: Path
) -> None:
    service = Service(tmp_path / "service", "--port-base", str(free_port_base()))
    service.start()
    try:
        async with targets(service, data) as lab:
            key = await lab.qemu_target("patient")
            with leased(service, "patient", abandon=True):
                (machine,) = machines(lab.exporter(key))
                assert service.process is not None
                service.process.kill()
                service.process.wait()
                # Longer than an exporter on its own would wait.
                await asyncio.sleep(8)
                service.start()
                eventually(lambda: service.exporter_status("patient") == "LeaseReady")
                assert alive([machine]) == [machine]
                assert (await lab.until(key, InstancePhase.RUNNING)).reason is None
    finally:
        service.stop()


async def test_disks_and_logs_are_retained_where_asked(service: Service, data: Path) -> None:
    async with targets(service, data) as lab:
        credentials = {"password": b"secret"}
        key = await lab.qemu_target("kept", retain=True, credentials=credentials)
        assert (lab.placement.layout.instance(key) / "credentials" / "password").exists()
        await asyncio.to_thread(_lease_once, service, "kept")
        await lab.until(key, InstancePhase.EXITED)
        await lab.qemu.remove(key)
        (kept,) = lab.placement.layout.kept()
        assert kept.name.startswith("default.kept-2")
        assert [path.name for path in kept.rglob("*.overlay")] == ["root.overlay"]
        assert "Registering" in (kept / "log").read_text()
        assert not list(kept.rglob("password"))
        shutil.rmtree(lab.placement.layout.retained)
    assert_nothing_left(data)


async def test_no_more_directories_are_retained_than_allowed(service: Service, data: Path) -> None:
    async with targets(service, data, retained_max=1) as lab:
        kept = lab.placement.layout.kept
        for name in ("kept-0", "kept-1"):
            key = await lab.mock_target(name, retain=True)
            await lab.until(key, InstancePhase.RUNNING)
            await lab.mock.remove(key)
            await asyncio.to_thread(eventually, lambda: len(kept()) == 1)
        assert kept()[0].name.startswith("default.kept-1-2")
        shutil.rmtree(lab.placement.layout.retained)
    assert_nothing_left(data)


async def test_secrets_are_in_no_argument_no_environment_and_no_file(
    service: Service, data: Path
) -> None:
    async with targets(service, data) as lab:
        key = await lab.qemu_target("discreet")
        token = yaml.safe_load((service.home / "discreet.yaml").read_text())["token"]
        with leased(service, "discreet"):
            family = [lab.zygote(), *lab.zygote().children(recursive=True)]
            for process in family:
                assert token not in " ".join(process.cmdline())
                assert token not in " ".join(process.environ().values())
            files = [path for path in data.rglob("*") if path.is_file()]
            assert files
            assert not [path for path in files if token.encode() in path.read_bytes()]
        assert lab.placement.layout.instances.stat().st_mode & 0o077 == 0
        own = lab.placement.layout.instance(key)
        state = layout.read_state(own)
        assert state is not None
        assert own.stat().st_mode & 0o027 == 0, "nobody but the instance's own group enters"
        assert not own.stat().st_mode & 0o050 or own.stat().st_gid == state.user


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        pytest.param(
            {"drivers": (Driver(name="x", type="no.such.Driver"),)},
            "no.such.Driver",
            id="a driver that is not installed",
        ),
        pytest.param(
            {"drivers": (Driver(name="x", type=f"{__name__}.Nothing"),)},
            "Nothing",
            id="a driver whose module has no such class",
        ),
        pytest.param(
            {
                "drivers": (
                    Driver(
                        name="x",
                        type="jumpstarter_driver_power.driver.MockPower",
                        config={"log_level": {"secret": 1}},
                    ),
                )
            },
            "log_level",
            id="a setting the driver does not take",
        ),
    ],
)
async def test_what_cannot_start_says_why(
    service: Service, data: Path, chosen: dict[str, Any], expected: str
) -> None:
    async with targets(service, data) as lab:
        name = f"broken-{abs(hash(expected)) % 10_000}"
        config = await asyncio.to_thread(exporter_config, service, name)
        spec = spec_for(config, MOCK, **chosen)
        await lab.mock.ensure(spec)
        ended = await lab.until(spec.key, InstancePhase.EXITED)
        assert ended.reason is ExitReason.START_FAILED
        assert expected in ended.detail
        assert "secret" not in ended.detail
    assert_nothing_left(data)


async def test_a_refused_token_is_said(service: Service, data: Path) -> None:
    async with targets(service, data) as lab:
        config = yaml.safe_load(await asyncio.to_thread(exporter_config, service, "refused"))
        config["token"] = "nonsense"
        spec = spec_for(yaml.safe_dump(config), MOCK)
        await lab.mock.ensure(spec)
        ended = await lab.until(spec.key, InstancePhase.EXITED)
        assert ended.reason is ExitReason.START_FAILED
        assert "UNAUTHENTICATED" in ended.detail
    assert_nothing_left(data)


async def test_a_missing_file_is_named(service: Service, data: Path) -> None:
    async with targets(service, data) as lab:
        config = await asyncio.to_thread(exporter_config, service, "fileless")
        parameters = {"arch": "aarch64", "firmware": {"path": "/nowhere/u-boot.bin"}}
        spec = spec_for(config, QEMU, parameters=parameters)
        await lab.qemu.ensure(spec)
        ended = await lab.until(spec.key, InstancePhase.EXITED)
        assert ended.reason is ExitReason.START_FAILED
        assert "/nowhere/u-boot.bin" in ended.detail
    assert_nothing_left(data)


async def test_a_zygote_that_cannot_load_says_why_and_is_tried_again(
    service: Service, data: Path
) -> None:
    async with targets(service, data, load=("no_such_module",)) as lab:
        config = await asyncio.to_thread(exporter_config, service, "unloaded")
        spec = spec_for(config, MOCK)
        await lab.mock.ensure(spec)
        ended = await lab.until(spec.key, InstancePhase.EXITED)
        assert ended.reason is ExitReason.START_FAILED
        assert "no_such_module" in ended.detail
        with pytest.raises(Unreachable, match="no_such_module"):
            await lab.mock.ensure(replace(spec, key=("default", "other")))
    assert_nothing_left(data)
