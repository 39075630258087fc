"""Linux system calls that Python does not wrap: namespaces, mounts, capabilities."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import socket
import struct
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_MOUNT_SETATTR = 442  # the same on every architecture
_CAPABILITIES_VERSION = 0x20080522
_CAPABILITIES_MAX = 64
_CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Create new namespaces; network and mount namespaces apply to this thread only."""
    _check("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    answer = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(f"mount {target}", answer)


def set_read_only(path: str, *, read_only: bool, recursive: bool = False) -> None:
    """Change a mount, and with ``recursive`` all mounts below it."""
    bit = _MOUNT_ATTR_RDONLY
    attributes = struct.pack("QQQQ", bit if read_only else 0, 0 if read_only else bit, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    answer = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(f"mount_setattr {path}", answer)


def drop_capabilities() -> None:
    """Drop every capability of this thread and of the programs it executes."""
    for number in range(_CAPABILITIES_MAX):
        # The kernel rejects numbers beyond the last capability.
        if _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
    number = _CAPSET[platform.machine()]
    _check("capset", _libc.syscall(ctypes.c_long(number), header, bytes(24)))


def prctl(option: int, argument: int) -> None:
    _check(f"prctl {option}", _libc.prctl(option, argument, 0, 0, 0))


def raise_loopback() -> None:
    """Bring up the loopback interface in this thread's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def allow_low_ports() -> None:
    """Let every process of this thread's network namespace listen on ports below 1024.

    A host that keeps ``/proc/sys`` read-only does not allow it; such ports then stay closed.
    """
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")


def _check(what: str, answer: int) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
