"""A person with a target in hand: a ``jmp shell`` that presses a button whenever it is told to."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.real_service import BIN, Service

PRESSES = """
import sys
from jumpstarter.utils.env import env
with env() as target:
    print("connected", flush=True)
    for line in sys.stdin:
        target.power.on()
        print("on", flush=True)
"""


class Shell:
    """A ``jmp shell`` that presses a button whenever it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def heard(self, word: str) -> bool:
        """Whether the program says ``word`` next; what jmp itself says is passed over."""
        assert self.process.stdout is not None
        return f"{word}\n" in iter(self.process.stdout.readline, "")

    def press(self) -> bool:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.heard("on")

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(120)


@contextlib.contextmanager
def shell(service: Service, client: Path, selector: str) -> Iterator[Shell]:
    script = service.home / "presses.py"
    script.write_text(PRESSES)
    command = [
        *(str(BIN / "jmp"), "shell", "--client-config", str(client), "-l", selector),
        *("--", str(BIN / "python"), str(script)),
    ]
    with subprocess.Popen(
        command,
        env=service.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        opened = Shell(process)
        try:
            assert opened.heard("connected")
            yield opened
        finally:
            process.kill()
