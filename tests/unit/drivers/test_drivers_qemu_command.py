"""QEMU's command line by golden values, and what QEMU says back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bullpen.drivers.qemu_command import Drive, Forward, Machine, command
from bullpen.drivers.qemu_parameters import Accel, NetworkAccess, QemuParameters
from bullpen.drivers.qemu_ports import forwarded_ports
from bullpen.drivers.target_files import File, MachineSite

BOARD = QemuParameters(machine_type="vexpress-a9")
UBOOT = Machine(
    arch="aarch64",
    smp=1,
    memory="128M",
    bios="/u-boot.bin",
    vnc="/run/vnc",
    cidata="/ci",
    qmp=7,
    serial=8,
)


def test_an_aarch64_board_with_uboot() -> None:
    assert " ".join(command(UBOOT)) == (
        "qemu-system-aarch64 -nodefaults -nographic -S"
        " -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
        " -machine virt -accel tcg,tb-size=256 -cpu cortex-a57"
        " -smp 1 -m 128M -chardev socket,id=qmp,fd=7 -mon chardev=qmp,mode=control"
        " -chardev socket,id=serial0,fd=8 -serial chardev:serial0"
        " -vnc unix:/run/vnc -bios /u-boot.bin -netdev user,id=eth0,restrict=on,ipv6=off"
        " -device virtio-net-pci,netdev=eth0 -vga none -device virtio-gpu-pci"
        " -blockdev driver=vvfat,node-name=cidata,read-only=on,dir=/ci,label=CIDATA"
        " -device virtio-blk-pci,drive=cidata"
    )


def test_an_x86_machine_with_everything() -> None:
    machine = Machine(
        parameters=QemuParameters(accel=Accel.KVM, extra_arguments=("-rtc", "base=utc")),
        arch="x86_64",
        smp=4,
        memory="2048M",
        flash=("/code.fd", "/vars.fd"),
        drives=(
            Drive(name="root", path="/d/root.overlay", format="qcow2"),
            Drive(name="data", path="/d/data", format="raw"),
        ),
        forwards=(Forward(guest_port=22), Forward(guest_port=80, host_port=8080)),
        vsock_cid=5,
        qmp=9,
        serial=10,
    )
    assert " ".join(command(machine)) == (
        "qemu-system-x86_64 -nodefaults -nographic -S"
        " -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
        " -machine q35 -accel kvm -cpu host -smp 4"
        " -m 2048M -chardev socket,id=qmp,fd=9 -mon chardev=qmp,mode=control"
        " -chardev socket,id=serial0,fd=10 -serial chardev:serial0"
        " -drive file=/code.fd,if=pflash,format=raw,unit=0,readonly=on"
        " -drive file=/vars.fd,if=pflash,format=raw,unit=1"
        " -netdev user,id=eth0,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:0-:22"
        ",hostfwd=tcp:127.0.0.1:8080-:80"
        " -device virtio-net-pci,netdev=eth0 -vga none -device virtio-gpu-pci"
        " -device vhost-vsock-pci,guest-cid=5"
        " -blockdev driver=qcow2,node-name=root,file.driver=file,file.filename=/d/root.overlay"
        " -device virtio-blk-pci,drive=root,bootindex=1"
        " -blockdev driver=raw,node-name=data,file.driver=file,file.filename=/d/data"
        " -device virtio-blk-pci,drive=data,bootindex=2"
        " -rtc base=utc"
    )


def test_the_disks_of_a_lasting_machine_but_the_first_can_be_detached() -> None:
    machine = Machine(
        arch="x86_64",
        site=MachineSite(lasting=True),
        drives=(
            Drive(name="boot", path="/d/boot", format="qcow2"),
            Drive(name="data", path="/d/data", format="qcow2", removable=True),
        ),
        control="/run/qmp",
        qmp=3,
        serial=4,
    )
    line = " ".join(command(machine))
    assert " -qmp unix:/run/qmp,server=on,wait=off " in line
    assert " -device virtio-scsi-pci,id=disks " in line
    assert " -device virtio-blk-pci,drive=boot,bootindex=1 " in line
    scsi = "scsi-hd,id=data,drive=data,serial=data,bus=disks.0,bootindex=2"
    assert line.endswith(f" -device {scsi}")


def test_a_board_without_pci_gets_what_it_has_sockets_for() -> None:
    board = Machine(
        parameters=BOARD,
        arch="arm",
        drives=(Drive(name="root", path="/d", format="raw"),),
        forwards=(Forward(guest_port=22),),
        cidata="/ci",
        qmp=3,
        serial=4,
    )
    line = command(board)

    assert "-device" not in line
    assert line[-4:] == (
        "-nic",
        "user,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:0-:22",
        "-drive",
        "file=/d,format=raw,index=0",
    )


def test_a_flashed_image_is_opened_without_any_other_file() -> None:
    drives = (
        Drive(name="root", path="/a,b", format="qcow2", standalone=True),
        Drive(name="data", path="/c", format="raw", standalone=True),
    )
    line = command(replace(UBOOT, drives=drives))
    blocks = [line[at + 1] for at, word in enumerate(line) if word == "-blockdev"]
    assert [json.loads(block) for block in blocks[:2]] == [
        {
            "node-name": "root",
            "driver": "qcow2",
            "backing": None,
            "file": {"driver": "file", "filename": "/a,b"},
        },
        {"node-name": "data", "driver": "raw", "file": {"driver": "file", "filename": "/c"}},
    ]
    board = command(replace(UBOOT, parameters=BOARD, drives=drives[:1]))
    shown = board[board.index("-drive") + 1]
    assert shown.startswith('file=json:{"driver": "qcow2",, ')
    assert '"filename": "/a,,b"' in shown
    assert '"backing": null' in shown


def test_a_guest_reaches_the_network_where_that_is_asked_for() -> None:
    line = command(replace(UBOOT, parameters=QemuParameters(network=NetworkAccess.USER)))
    assert line[line.index("-netdev") + 1] == "user,id=eth0"


def test_a_kernel_is_started_with_its_command_line() -> None:
    wanted = QemuParameters(
        kernel=File(path="/vmlinuz"),
        initrd=File(url="https://lab/initrd", digest="sha256:1"),
        append="console=ttyAMA0 a=b",
    )
    site = MachineSite(files={"sha256:1": "/initrd"})
    line = command(replace(UBOOT, parameters=wanted, site=site))

    start = line.index("-kernel")
    assert line[start : start + 6] == (
        "-kernel",
        "/vmlinuz",
        "-initrd",
        "/initrd",
        "-append",
        "console=ttyAMA0 a=b",
    )


@pytest.mark.parametrize(
    ("machine", "cpu"),
    [
        pytest.param(
            replace(UBOOT, parameters=QemuParameters(cpu="max")), "max", id="what is asked for"
        ),
        pytest.param(
            replace(UBOOT, parameters=QemuParameters(accel=Accel.KVM)),
            "host",
            id="the host's with KVM",
        ),
        pytest.param(
            replace(UBOOT, site=MachineSite(kvm=True)), "host", id="the host's if KVM works there"
        ),
        pytest.param(
            replace(UBOOT, parameters=QemuParameters(accel=Accel.TCG), site=MachineSite(kvm=True)),
            "cortex-a57",
            id="a common one where KVM works and is not wanted",
        ),
        pytest.param(
            replace(UBOOT, arch="riscv64"), None, id="QEMU's own choice where there is none of ours"
        ),
    ],
)
def test_the_cpu_is(machine: Machine, cpu: str | None) -> None:
    line = command(machine)
    assert (line[line.index("-cpu") + 1] if "-cpu" in line else None) == cpu


def test_a_comma_in_a_path_begins_no_option() -> None:
    drive = Drive(name="root", path="/a,b", format="raw")
    line = " ".join(command(replace(UBOOT, drives=(drive,), flash=("/c,d", "/e,f"), cidata="/g,h")))

    for path in ("filename=/a,,b ", "file=/c,,d,if=", "file=/e,,f,if=", "dir=/g,,h,label"):
        assert path in line


def test_forwarded_ports_are_read_from_what_qemu_prints() -> None:
    shown = (
        "Hub -1 (eth0):\r\n"
        "  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n"
        "  TCP[ESTABLISHED]   15       10.0.2.15 50000     93.184.216.34   443     0     0\r\n"
        "  TCP[HOST_FORWARD]  13       127.0.0.1 46243       10.0.2.15    80     0     0\r\n"
        "  TCP[HOST_FORWARD]  12       127.0.0.1 41931       10.0.2.15    22     0     0\r\n"
    )
    assert forwarded_ports(shown) == {80: 46243, 22: 41931}
