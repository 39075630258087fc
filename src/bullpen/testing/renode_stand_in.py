#!/usr/bin/python3
"""A stand-in for Renode: its monitor on the standard streams, as far as Bullpen uses it.

    renode_stand_in.py --console --disable-gui --plain --hide-analyzers --config FILE

It was written from Renode's documentation and its published source (``CommandLineInterface``,
``Monitor``, ``MonitorCommands``, ``UartPtyTerminal``, ``EmulationManager``, as of August 2026). It
was never compared with a running Renode, which could not be had here. With ``RENODE=PATH`` in the
environment, the tests that use it run with a real Renode instead.

It simulates no processor. A machine "runs" an ELF file by printing the first line of text in it on
the first UART of its platform, then echoes what it receives there. As in Renode, the prompt has no
newline, what is typed is echoed, records of the log are printed in the middle of lines, the rest
of a line is skipped after a command that fails, and loading a snapshot restores the terminals in it
and then deletes their links.

Only the standard library, of Python 3.9 or later: it runs in the sandbox of a target.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import sys
import threading
import time
import tty
from typing import Any

PAUSE_SECONDS = 0.01
_WORD = re.compile(r'"[^"]*"|@[^\s;]+|[^\s;"]+|;')
_TEXT = re.compile(rb"[ -~]{8,}\r\n")
_UART = re.compile(r"^(\w+): UART\.\w+ @ sysbus (0x[0-9A-Fa-f]+)", re.MULTILINE)
_MACRO = re.compile(r'macro (\w+)\s*"""(.*?)"""', re.DOTALL)


class Refused(Exception):
    """A command that cannot be executed."""


class Terminal:
    """A pseudo-terminal with a link to it."""

    def __init__(self, link: str) -> None:
        self.link = link
        self.ours, self.theirs = os.openpty()
        tty.setraw(self.theirs)
        self.unlink()
        os.symlink(os.ttyname(self.theirs), link)

    def unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.link)

    def dispose(self) -> None:
        self.unlink()
        os.close(self.ours)
        os.close(self.theirs)


class Emulation:
    """A machine, the terminals, and the UARTs to which they are connected."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        kept = state or {}
        self.machine: str = kept.get("machine", "")
        self.uarts: dict[str, int] = kept.get("uarts", {})
        self.banner: str = kept.get("banner", "")
        self.booted: bool = kept.get("booted", False)
        self.connections: dict[str, str] = kept.get("connections", {})
        self.terminals = {name: Terminal(link) for name, link in kept.get("links", {}).items()}
        self.running = False

    def state(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "uarts": self.uarts,
            "banner": self.banner,
            "booted": self.booted,
            "connections": self.connections,
            "links": {name: terminal.link for name, terminal in self.terminals.items()},
        }

    def transmit(self, uart: str, data: bytes) -> None:
        for terminal, connected in self.connections.items():
            if connected == uart:
                os.write(self.terminals[terminal].ours, data)

    def boot(self) -> None:
        self.booted = True
        self.transmit(next(iter(self.uarts), ""), self.banner.encode())

    def hear(self) -> None:
        """Echo what the first UART has received; a machine that is paused receives nothing."""
        ours = {terminal.ours: name for name, terminal in self.terminals.items()}
        ready, _, _ = select.select(list(ours) if self.running else (), [], [], 0)
        for found in ready:
            data = os.read(found, 4096)
            uart = self.connections.get(ours[found], "")
            if uart == next(iter(self.uarts), ""):
                self.transmit(uart, data)


class Monitor:
    """Reads commands and executes them, while the machine runs in a thread."""

    def __init__(self) -> None:
        self.emulation = Emulation()
        self.variables: dict[str, str] = {}
        self.selected = False
        self.lock = threading.Lock()

    def serve(self) -> None:
        self.log("Loaded monitor commands from: monitor.py")
        self.put("Renode, version 0.0.0 (stand-in)\n\n")
        self.prompt()
        threading.Thread(target=self.simulate, daemon=True).start()
        for line in sys.stdin:
            self.say(line)
            with self.lock:
                if self.execute(line.strip()):
                    return
            self.prompt()

    def simulate(self) -> None:
        while True:
            with self.lock:
                self.emulation.hear()
            time.sleep(PAUSE_SECONDS)

    def put(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def log(self, text: str) -> None:
        self.put(f"17:01:20.6362 [INFO] {text}\n")

    def say(self, text: str) -> None:
        """Print as Renode does: one character after the other, with the log in between."""
        middle = len(text) // 2
        self.put(text[:middle])
        self.log("stand-in: in the middle of a line")
        self.put(text[middle:])

    def prompt(self) -> None:
        self.put(f"({self.emulation.machine if self.selected else 'monitor'}) ")

    def execute(self, line: str) -> bool:
        """Execute the commands of a line, up to the first that fails; whether it is the end."""
        words: list[str] = []
        for word in [*_WORD.findall(line), ";"]:
            if word != ";":
                words.append(word)
                continue
            if words == ["quit"]:
                return True
            try:
                self.command(words)
            except (Refused, IndexError) as error:
                self.say(f"There was an error executing command '{' '.join(words)}':\n")
                self.say(f"{error}\n")
                return False
            words = []
        return False

    def command(self, words: list[str]) -> None:
        if not words:
            return
        name, *rest = words
        known = getattr(self, f"do_{name.lower()}", None)
        if name.startswith("$"):
            self.variables[name.partition("=@")[0]] = name.partition("=@")[2]
        elif known is None or (name in ("machine", "sysbus") and not self.selected):
            raise Refused(f"No such command or device: {name}")
        else:
            known(*rest)

    def do_string(self, *words: str) -> None:
        self.say(f'"{" ".join(words)}"\n')

    def do_mach(self, action: str, name: str) -> None:
        if action == "create":
            self.emulation.machine = name.strip('"')
        self.selected = bool(self.emulation.machine)

    def do_emulation(self, action: str, name: str, link: str, *more: str) -> None:
        if action != "CreateUartPtyTerminal":
            raise Refused(f"emulation has no {action}")
        if name.strip('"') in self.emulation.terminals:
            raise Refused(f"{name} is in use")
        self.emulation.terminals[name.strip('"')] = Terminal(link.strip('"'))

    def do_connector(self, action: str, uart: str, terminal: str) -> None:
        emulation = self.emulation
        if terminal not in emulation.terminals or uart not in emulation.uarts:
            raise Refused(f"Could not find {uart} or {terminal}")
        if action == "Connect":
            emulation.connections[terminal] = uart
        elif emulation.connections.pop(terminal, "") != uart:
            raise Refused(f"{terminal} is not connected to {uart}")

    def do_include(self, word: str) -> None:
        with open(self.path(word)) as file:
            text = file.read()
        for name, body in _MACRO.findall(text):
            self.variables[f"${name}"] = body.strip()
        for line in _MACRO.sub("", text).splitlines():
            self.command(_WORD.findall(line))

    def do_runmacro(self, name: str) -> None:
        for line in self.variables[name].splitlines():
            self.command(_WORD.findall(line))

    def do_start(self) -> None:
        self.say("Starting emulation...\n")
        self.emulation.running = True
        if not self.emulation.booted:
            self.emulation.boot()

    def do_pause(self) -> None:
        self.say("Pausing emulation...\n")
        self.emulation.running = False

    def do_currenttime(self) -> None:
        self.say("Current virtual time: 00:00:01.000000\n")

    def do_save(self, word: str) -> None:
        with open(word[1:], "w") as file:
            json.dump(self.emulation.state(), file)

    def do_load(self, word: str) -> None:
        with open(self.path(word)) as file:
            loaded = Emulation(json.load(file))
        old, self.emulation, self.selected = self.emulation, loaded, False
        for terminal in old.terminals.values():
            terminal.dispose()

    def do_machine(self, action: str, *rest: str) -> None:
        if action == "LoadPlatformDescription":
            with open(self.path(rest[0])) as file:
                found = _UART.findall(file.read())
            self.emulation.uarts = {f"sysbus.{name}": int(place, 16) for name, place in found}
        elif action == "Reset":
            self.log("machine-0: Machine reset")
            self.do_runmacro("$reset")
            self.emulation.boot()
        elif action == "StartGdbServer":
            # Renode listens on every interface.
            listener = socket.create_server(("", int(rest[0])))
            threading.Thread(target=_serve_gdb, args=(listener,), daemon=True).start()
        else:
            raise Refused(f"machine has no {action}")

    def do_sysbus(self, action: str, *rest: str) -> None:
        if action == "WriteDoubleWord":
            for uart, place in self.emulation.uarts.items():
                if int(rest[0], 16) == place:
                    self.emulation.transmit(uart, bytes([int(rest[1], 16)]))
            return
        with open(self.path(rest[0]), "rb") as file:
            content = file.read()
        if action != "LoadELF" or not content.startswith(b"\x7fELF"):
            raise Refused(f"{action}: the stand-in loads ELF files only, and this is none")
        found = _TEXT.search(content)
        self.emulation.banner = found[0].decode() if found else ""

    def path(self, word: str) -> str:
        path = self.variables.get(word, word[1:])
        if not os.path.exists(path):
            raise Refused(f"Could not find file '{path}'")
        return path


def _serve_gdb(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"+$S05#b8")


if __name__ == "__main__":
    if not {"--console", "--plain", "--disable-gui"} <= set(sys.argv):
        sys.exit("the stand-in needs --console --plain --disable-gui")
    Monitor().serve()
