#!/usr/bin/python3
"""A stand-in for the Android emulator, to which the real adb talks.

    android_emulator_stand_in.py -avd NAME -port 5554 [the emulator's other options]

It reads the virtual device from ``ANDROID_AVD_HOME`` as the emulator does, tells the adb server of
itself, and answers adb as a device that takes a moment to boot: properties, a shell with a few
commands, and the installation of packages. It was written from adb's protocol.txt and SERVICES.TXT
and the options of the emulator's documentation, and checked against the adb of Debian 12 (29.0.6).
It was never compared with a real emulator or a real Android, which could not be had here.

There is no Android in it: an "installed" package is the first line of its file, and the shell knows
``echo`` (also into a file), ``cat``, ``getprop``, ``pm list packages``, ``logcat -d`` and ``exit``.

Only the standard library, of Python 3.10 or later: it runs in the sandbox of a target.
"""

from __future__ import annotations

import itertools
import os
import shlex
import socket
import struct
import sys
import threading
import time
from pathlib import Path

BOOT_SECONDS = 1.0
VERSION = 0x01000001
PAYLOAD_BYTES_MAX = 4096
HEADER = struct.Struct("<6I")
BANNER = "device::ro.product.name=stand_in;ro.product.model=stand-in;ro.product.device=none;"
PROMPT = "stand-in:/ $ "
CNXN, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(name, "little") for name in (b"CNXN", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)


def environment(name: str) -> str:
    return os.environ[name]  # noqa: TID251 - this is a program of its own


def settings(path: Path) -> dict[str, str]:
    """A file of ``name=value`` lines."""
    pairs = (line.partition("=") for line in path.read_text().splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


class Device:
    """What is behind adb: the data of the virtual device, and what runs on it."""

    def __init__(self, avd: str) -> None:
        self.place = Path(settings(Path(environment("ANDROID_AVD_HOME")) / f"{avd}.ini")["path"])
        self.config = settings(self.place / "config.ini")
        if not Path(self.config["image.sysdir.1"]).is_dir():
            sys.exit(f"PANIC: Cannot find AVD system path {self.config['image.sysdir.1']}")
        lock = self.place / "multiinstance.lock"
        if lock.exists():
            sys.exit("PANIC: Running multiple emulators with the same AVD is not supported")
        lock.touch()
        self.data = self.place / "data"
        self.data.mkdir(exist_ok=True)
        seconds = float(self.config.get("standin.bootSeconds", BOOT_SECONDS))
        self.booted_at = time.monotonic() + seconds

    def packages(self) -> list[str]:
        return sorted(path.read_text() for path in self.data.glob("package-*"))

    def install(self, content: bytes) -> str:
        name = content.split(b"\n")[0].decode(errors="replace")
        if not name.startswith("package:"):
            return "Failure [INSTALL_PARSE_FAILED_NOT_APK]\n"
        (self.data / f"package-{len(self.packages())}").write_text(name)
        return "Success\n"

    def run(self, command: str) -> str:
        """What a command prints."""
        words = shlex.split(command)
        if words == ["getprop", "sys.boot_completed"]:
            return "1\n" if time.monotonic() > self.booted_at else "\n"
        if words[:1] == ["getprop"] and len(words) == 2:
            return f"{self.config.get(words[1], '')}\n"
        if words == ["pm", "list", "packages"]:
            return "".join(f"{name}\n" for name in self.packages())
        if words == ["logcat", "-d"]:
            return "01-01 00:00:00.000 I/stand-in: booted\n"
        if words[:1] == ["echo"] and words[-2:-1] == [">"]:
            (self.data / Path(words[-1]).name).write_text(" ".join(words[1:-2]) + "\n")
            return ""
        if words[:1] == ["echo"]:
            return " ".join(words[1:]) + "\n"
        if words[:1] == ["cat"] and (self.data / Path(words[-1]).name).exists():
            return (self.data / Path(words[-1]).name).read_text()
        return f"/system/bin/sh: {words[0] if words else ''}: not found\n"


class Stream:
    """One service that adb has opened."""

    def __init__(self, link: Link, ours: int, theirs: int, service: str) -> None:
        self.link, self.ours, self.theirs = link, ours, theirs
        self.service = service
        self.pending = b""
        self.outgoing: list[bytes] = []
        self.unanswered = False
        self.ending = False

    def begin(self) -> None:
        kind, _, command = self.service.partition(":")
        if self.service == "shell:":
            self.say(PROMPT)
        elif kind == "shell":
            self.say(self.link.device.run(command))
            self.end()
        elif kind == "exec":
            self.size = int(shlex.split(command)[-1])
        else:
            self.end()

    def hear(self, data: bytes) -> None:
        self.pending += data
        if self.service.startswith("exec:") and len(self.pending) >= self.size:
            self.say(self.link.device.install(self.pending))
            self.end()
        while self.service == "shell:" and b"\n" in self.pending:
            line, _, self.pending = self.pending.partition(b"\n")
            command = line.decode(errors="replace").strip()
            if command == "exit":
                self.end()
                return
            self.say(f"{command}\r\n{self.link.device.run(command)}{PROMPT}")

    def say(self, text: str) -> None:
        data = text.encode()
        for start in range(0, len(data), PAYLOAD_BYTES_MAX):
            self.outgoing.append(data[start : start + PAYLOAD_BYTES_MAX])
        self.flush()

    def end(self) -> None:
        self.ending = True
        self.flush()

    def flush(self) -> None:
        """Send the next piece; each waits until adb has answered the one before."""
        if self.unanswered:
            return
        if self.outgoing:
            self.unanswered = True
            self.link.send(WRTE, self.ours, self.theirs, self.outgoing.pop(0))
        elif self.ending:
            self.link.send(CLSE, self.ours, self.theirs)
            self.link.streams.pop(self.ours, None)


class Link:
    """A connection of an adb server."""

    def __init__(self, device: Device, connection: socket.socket) -> None:
        self.device, self.connection = device, connection
        self.streams: dict[int, Stream] = {}
        self.opened = 0

    def serve(self) -> None:
        with self.connection, self.connection.makefile("rb") as messages:
            while header := messages.read(HEADER.size):
                command, first, second, size, _, magic = HEADER.unpack(header)
                if magic != command ^ 0xFFFFFFFF:
                    return
                self.handle(command, first, second, messages.read(size))

    def handle(self, command: int, first: int, second: int, data: bytes) -> None:
        stream = self.streams.get(second)
        if command == CNXN:
            self.send(CNXN, VERSION, PAYLOAD_BYTES_MAX, BANNER.encode() + b"features=cmd")
        elif command == OPEN:
            self.opened += 1
            service = data.rstrip(b"\0").decode()
            opened = self.streams[self.opened] = Stream(self, self.opened, first, service)
            self.send(OKAY, opened.ours, first)
            opened.begin()
        elif stream is None:
            return
        elif command == WRTE:
            self.send(OKAY, stream.ours, stream.theirs)
            stream.hear(data)
        elif command == OKAY:
            stream.unanswered = False
            stream.flush()
        elif command == CLSE:
            self.streams.pop(second, None)

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        header = (command, first, second, len(data), sum(data) & 0xFFFFFFFF, command ^ 0xFFFFFFFF)
        self.connection.sendall(HEADER.pack(*header) + data)


def introduce(port: int) -> None:
    """Tell the adb server of this emulator."""
    server = int(environment("ANDROID_ADB_SERVER_PORT"))
    request = f"host:emulator:{port}"
    with socket.create_connection(("127.0.0.1", server)) as connection:
        connection.sendall(f"{len(request):04x}{request}".encode())


def main(arguments: list[str]) -> None:
    options = dict(itertools.pairwise([*arguments, ""]))
    device = Device(options["-avd"])
    port = int(options["-port"]) + 1
    if "-no-window" not in arguments:
        sys.exit("could not connect to display")
    sys.stdout.write("INFO    | stand-in for the Android emulator\n")
    sys.stdout.flush()
    with socket.create_server(("127.0.0.1", port)) as listener:
        introduce(port)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=Link(device, connection).serve, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
