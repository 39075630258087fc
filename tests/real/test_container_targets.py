"""Targets that are containers, with real podman: console, power, files, ports, flashing, limits."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.container_image import has_podman, write_image
from support.qemu_pools import shell, until
from support.real_service import BIN, Service, eventually, running_service

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not has_podman(), reason="podman and runc are not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="instances need users of their own"),
]

GROUP = "virtualtarget.jumpstarter.dev/v1alpha1"
LEASE_SECONDS_MAX = 120.0

PRELUDE = """\
from jumpstarter.utils.env import env
def run(line, command, timeout=60):
    line.sendline(command + '; echo do""ne')
    line.expect('do' + 'ne', timeout=timeout)
    print(line.before.decode().partition('\\n')[2])
with env() as client:
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory whose files instances can read."""
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    return tmp_path


def apply_pool(service: Service, name: str, parameters: dict[str, Any]) -> None:
    labels = {"board": name}
    manifests = [
        {
            "apiVersion": GROUP,
            "kind": "VirtualTargetClass",
            "metadata": {"name": name},
            "spec": {"provisioner": "container.bullpen.dev", "parameters": parameters},
        },
        {
            "apiVersion": GROUP,
            "kind": "ExporterSet",
            "metadata": {"name": name},
            "spec": {
                "virtualTargetClassName": name,
                "minAvailableReplicas": 1,
                "maxReplicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}},
            },
        },
    ]
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(manifests))
    until(service, name, availableReplicas=1)


def lessee(service: Service, name: str, *lines: str) -> str:
    """What a lessee of the pool prints who does this with the target."""
    script = PRELUDE + "".join(f"    {line}\n" for line in lines)
    process = shell(service, name, str(BIN / "python"), "-c", script)
    said, _ = process.communicate(timeout=LEASE_SECONDS_MAX)
    assert process.returncode == 0, said
    return said


def test_a_container_is_leased_with_its_console_files_ports_and_power(
    service: Service, files: Path
) -> None:
    image = write_image(files / "image.tar", says="of the image")
    (files / "own.txt").write_text("of the class")
    parameters = {
        "image": {"path": str(image)},
        "environment": {"COLOUR": "a deep blue"},
        "files": {"/given/own.txt": {"path": str(files / "own.txt")}},
        "ports": {"web": {"port": 80}},
        "ready": "# ",
    }
    apply_pool(service, "containers", parameters)
    said = lessee(
        service, "containers",
        "client.power.on()",
        "with client.serial.pexpect() as line:",
        "    run(line, 'cat /says /given/own.txt; echo; echo $COLOUR; id -u; ls /root /home')",
        "    run(line, 'ps | cat; echo written > /given/own.txt; echo kept > /kept')",
        "    run(line, 'httpd -p 127.0.0.1:80 -h /')",
        "    with client.target.web.stream() as stream:",
        "        stream.send(b'GET /says HTTP/1.0\\r\\n\\r\\n')",
        "        print('WEB', stream.receive())",
        "    client.power.cycle(0)",
        "    line.expect('# ', timeout=60)",
        "    run(line, 'cat /kept; ps | cat')",
        "client.power.off()",
        "print([reading.voltage for reading in client.power.read()])",
    )  # fmt: skip

    assert "of the imageof the class" in said
    assert "a deep blue" in said
    assert "Read-only file system" in said
    assert "kept" in said, "its files outlive a power cycle"
    assert "200 OK" in said
    assert "httpd" not in said.rpartition("kept")[2], "its processes do not"
    assert "[0.0]" in said


def test_a_lessee_flashes_an_image_of_their_own(service: Service, files: Path) -> None:
    apply_pool(service, "empty-containers", {"console": "shell", "ready": "# "})
    mine = write_image(files / "mine.tar", says="mine", command=("sleep", "1000"))
    other = write_image(files / "other.tar", says="other", command=("sleep", "1000"))
    said = lessee(
        service, "empty-containers",
        "try:",
        "    client.power.on()",
        "except Exception as error:",
        "    print('ERROR', error)",
        f"for image in ({str(mine)!r}, {str(other)!r}):",
        "    client.target.flasher.flash(image)",
        "    client.power.on()",
        "    with client.serial.pexpect() as line:",
        "        run(line, 'cat /says; ls /left; echo > /left')",
        "        line.sendline('exit')",
        "        line.expect('exit.*# ', timeout=60)",
        "        run(line, 'echo a new shell')",
        "    client.power.off()",
    )  # fmt: skip

    assert "the target has no image; flash one, then switch it on" in said
    assert "mine" in said
    assert "other" in said
    assert said.count("/left: No such file") == 2, "another image starts afresh"
    assert said.count("\na new shell") == 2, "a shell that ends is started again"


def test_a_container_that_cannot_start_says_why(service: Service, files: Path) -> None:
    image = write_image(files / "image.tar", says="")
    apply_pool(
        service, "no-command", {"image": {"path": str(image)}, "command": ["/bin/missing", "-x"]}
    )
    said = lessee(
        service, "no-command",
        "try:",
        "    client.power.on()",
        "except Exception as error:",
        "    print('ERROR', error)",
    )  # fmt: skip

    assert "the target did not start: the program ended" in said
    assert "/bin/missing" in said


def test_a_container_has_no_more_memory_than_its_class_grants(
    service: Service, files: Path
) -> None:
    image = write_image(files / "image.tar", says="")
    parameters = {"image": {"path": str(image)}, "resources": {"memory": "64Mi"}, "ready": "# "}
    apply_pool(service, "small-containers", parameters)
    said = lessee(
        service, "small-containers",
        "client.power.on()",
        "with client.serial.pexpect() as line:",
        "    run(line, 'dd if=/dev/zero of=/dev/null bs=8M count=1 && echo eight')",
        "    run(line, 'dd if=/dev/zero of=/dev/null bs=600M count=1 && echo much')",
    )  # fmt: skip

    assert "\neight" in said
    assert "\nmuch" not in said
    assert "Killed" in said


def test_nothing_of_a_container_survives_the_service(fresh_service: Service, files: Path) -> None:
    service = fresh_service
    image = write_image(files / "image.tar", says="")
    command = ["/bin/sleep", "98765"]
    apply_pool(service, "killed", {"image": {"path": str(image)}, "command": command})
    script = "from jumpstarter.utils.env import env\nwith env() as c: c.power.on(); input()\n"
    holder = shell(service, "killed", str(BIN / "python"), "-c", script)
    try:
        eventually(lambda: running("sleep 98765"), seconds=120, what="a container")
        assert running("conmon")
        service.stop(signal.SIGKILL)
        eventually(lambda: not running("sleep 98765"), seconds=120, what="the end of it")
        eventually(lambda: not running(str(service.data)), seconds=120, what="the end of podman")
    finally:
        holder.kill()
        holder.communicate()


def test_containers_work_where_overlay_file_systems_cannot_be_nested(files: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (files / name).mkdir()
    places = f"lowerdir={files}/lower,upperdir={files}/upper,workdir={files}/work"
    mounted = ["mount", "-t", "overlay", "overlay", "-o", places, str(files / "merged")]
    if subprocess.run(mounted, check=False).returncode:
        pytest.skip("overlay file systems cannot be mounted here")
    try:
        image = write_image(files / "image.tar", says="copied")
        with running_service(files / "merged") as service:
            apply_pool(service, "copied", {"image": {"path": str(image)}, "ready": "# "})
            said = lessee(
                service, "copied",
                "client.power.on()",
                "with client.serial.pexpect() as line:",
                "    run(line, 'cat /says')",
            )  # fmt: skip
        assert "copied" in said.partition("cat /says")[2]
    finally:
        subprocess.run(["umount", str(files / "merged")], check=True)


def running(words: str) -> list[str]:
    """Command lines of processes in which these words are."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if words in line]
