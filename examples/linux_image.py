"""Makes a kernel and an initramfs for examples/linux-pool.yaml from two Debian packages.

    python examples/linux_image.py images

The script downloads and unpacks the packages but never installs them: it changes only the
given directory. The guest consists of Debian's cloud kernel, BusyBox and the modules for a
virtio disk. Log in on its serial console as `root` without a password.
"""

import gzip
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

KERNEL, USERLAND = "linux-image-cloud-amd64", "busybox-static"
MODULES = ("virtio_pci", "virtio_blk")
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
hostname linux-pool
echo "Linux $(uname -r) is up"
while :; do getty 115200 ttyS0; done
"""
FILES = {
    "etc/passwd": b"root::0:0:root:/:/bin/sh\n",
    "etc/group": b"root:x:0:\n",
    "etc/issue": b"A virtual board\n",
}
DIRECTORIES = ("bin", "dev", "etc", "modules", "proc", "sys")


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        unpacked = unpack(Path(work))
        (kernel,) = unpacked.glob("boot/vmlinuz-*")
        content = {
            **{path: (0o100644, data) for path, data in FILES.items()},
            "init": (0o100755, INIT.encode()),
            "bin/busybox": (0o100755, (unpacked / "bin/busybox").read_bytes()),
        }
        for number, (name, module) in enumerate(with_needs(MODULES, unpacked).items()):
            content[f"modules/{number:02}-{name}.ko"] = (0o100644, module)
        (directory / "initrd").write_bytes(gzip.compress(archive(content), mtime=0))
        (directory / "vmlinuz").write_bytes(kernel.read_bytes())
    print(f"{directory}/vmlinuz and {directory}/initrd are ready")


def unpack(work: Path) -> Path:
    """Both packages' files below one directory."""
    depends = run("apt-cache", "depends", KERNEL, cwd=work).splitlines()
    names = [line.split()[-1] for line in depends if line.strip().startswith("Depends:")]
    if not names:
        sys.exit(f"apt knows no {KERNEL}: this needs Debian on amd64, and apt-get update before")
    print(f"downloading {names[0]} and {USERLAND} (27 MB)", flush=True)
    run("apt-get", "download", "-qq", names[0], USERLAND, cwd=work)
    for package in work.glob("*.deb"):
        run("dpkg-deb", "-x", str(package), "unpacked", cwd=work)
    return work / "unpacked"


def with_needs(names: Iterable[str], unpacked: Path) -> dict[str, bytes]:
    """Modules and before each what it needs, which it says itself and which kernels change."""
    found: dict[str, bytes] = {}
    for name in names:
        (path,) = unpacked.glob(f"lib/modules/*/kernel/**/{name}.ko")
        data = path.read_bytes()
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        if needs and needs[1]:
            found |= with_needs(needs[1].decode().split(","), unpacked)
        found.setdefault(name, data)
    return found


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def archive(content: dict[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive as the kernel reads it, owned by root."""
    entries = [(name, 0o040755, b"") for name in DIRECTORIES]
    entries += [(name, mode, data) for name, (mode, data) in content.items()]
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(entry(number, *each) for number, each in enumerate(entries, start=1))


def entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    links, path = (2 if mode & 0o040000 else 1), name.encode() + b"\0"
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return padded(head) + padded(data)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python linux_image.py DIRECTORY")
    main(Path(sys.argv[1]))
