"""The conformance checklist, points 14 and 15: pytest and MCP through a lease, and a machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from support.lab_helpers import Lab
from support.real_service import BIN, Service, eventually

pytestmark = pytest.mark.real

FIRMWARE = Path("/usr/lib/u-boot/qemu_arm64/u-boot.bin")

SUITE = """
from jumpstarter_testing.pytest import JumpstarterTest

class TestBoard(JumpstarterTest):
    selector = "board=suite"

    def test_it_answers(self, client):
        client.power.on()
        assert [r.voltage for r in client.power.read()] == [0.0, 5.0]

    def test_it_fails_when_it_should(self, client):
        client.power.off()
        assert client.power is None
"""

MACHINE = """
import sys
import pexpect
from jumpstarter.utils.env import env

def version(console, tries):
    # The driver resets the machine after it has started it: a line that was typed
    # to the machine before the reset is lost, so the question is repeated.
    for _ in range(tries):
        console.sendline("version")
        if console.expect([r"U-Boot \\S+", pexpect.TIMEOUT], timeout=0.5) == 0:
            return console.after.decode()
    return None

with env() as target:
    flashed = len(sys.argv) > 1
    if flashed:
        target.qemu.flasher.flash(sys.argv[1], target="bios")
    target.qemu.power.on()
    with target.qemu.console.pexpect() as console:
        booted = version(console, 120 if flashed else 6)
        print("=booted= " + booted if booted else "=silence=")
    target.qemu.power.off()
"""


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    return Lab(service)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.client("alice")


@pytest.fixture(scope="module")
def boards(lab: Lab) -> Iterator[dict[str, Path]]:
    configs = {name: lab.exporter(name, {"board": name}) for name in ("suite", "tool")}
    with lab.running(*configs.values()):
        yield configs


def test_14_pytest_inside_a_shell(
    lab: Lab, alice: Path, boards: dict[str, Path], tmp_path: Path
) -> None:
    suite = tmp_path / "test_board.py"
    suite.write_text(SUITE)
    done = lab.jmp(
        *(alice, "shell", "-l", "board=suite", "--"),
        *("pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(suite)),
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert done.returncode == 1, "the exit code is pytest's"
    assert "power on" in boards["suite"].with_suffix(".log").read_text()


async def test_14_mcp_connects_runs_and_disconnects(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    service = lab.service
    home = service.home / "config" / "jumpstarter"
    (home / "clients").mkdir(parents=True, exist_ok=True)
    (home / "clients" / "alice.yaml").write_text(alice.read_text())
    user = {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "UserConfig",
        "config": {"current-client": "alice"},
    }
    (home / "config.yaml").write_text(yaml.safe_dump(user))
    server = StdioServerParameters(
        command=str(BIN / "jmp"), args=["mcp", "serve"], env=service.environment
    )
    with (service.home / "mcp.log").open("w") as log:
        async with (
            stdio_client(server, errlog=log) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()

            async def call(tool: str, **arguments: object) -> Any:
                result: Any = await session.call_tool(f"jmp_{tool}", arguments)
                return json.loads(result.content[0].text)

            exporters = await call("list_exporters", selector="board=tool")
            assert "tool" in json.dumps(exporters)
            connected = await call("connect", selector="board=tool", duration_seconds=300)
            assert connected["exporter_name"] == "tool", connected
            lease = connected["lease_name"]
            assert lease in json.dumps(await call("list_leases"))
            number = connected["connection_id"]
            ran = await call("run", connection_id=number, command=["power", "on"])
            assert ran["exit_code"] == 0, ran
            await call("disconnect", connection_id=number)
    assert "power on" in boards["tool"].with_suffix(".log").read_text()
    eventually(lambda: lab.get("leases", lease)["status"]["ended"], what="the lease ending")
    eventually(lambda: lab.status("tool") == "Available", what="the exporter being free")


@pytest.mark.skipif(
    not FIRMWARE.exists() or not shutil.which("qemu-system-aarch64"),
    reason="needs the packages qemu-system-arm and u-boot-qemu",
)
def test_15_a_machine_is_flashed_booted_and_recycled(lab: Lab, alice: Path, tmp_path: Path) -> None:
    """What one lease flashed is gone for the next, and so is the machine."""
    script, image = tmp_path / "machine.py", tmp_path / "firmware.bin"
    script.write_text(MACHINE)
    shutil.copy(FIRMWARE, image)
    machine = {
        "qemu": {
            "type": "jumpstarter_driver_qemu.driver.Qemu",
            "config": {"arch": "aarch64", "smp": 1, "mem": "128M"},
        },
        "power": {"ref": "qemu.power"},
        "serial": {"ref": "qemu.console"},
    }
    with lab.running(lab.exporter("machine", {"board": "uboot"}, export=machine)) as (exporter,):

        def shell(*arguments: str) -> str:
            ran = lab.jmp(
                *(alice, "shell", "-l", "board=uboot", "--", str(BIN / "python"), str(script)),
                *arguments,
            )
            return ran.stdout + ran.stderr

        def machines() -> list[psutil.Process]:
            family = psutil.Process(exporter.pid).children(recursive=True)
            return [process for process in family if process.name().startswith("qemu-system")]

        assert "=booted= U-Boot 20" in shell(str(image))
        eventually(lambda: not machines(), what="the machine being gone")
        assert "=silence=" in shell(), "the firmware of the lease before is still there"
        eventually(lambda: not machines(), what="the machine being gone")
