"""The way of a newcomer: one command, the link that it prints, one click, a U-Boot prompt."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from playwright.sync_api import expect

from support.browser import Person

PRINT_SECONDS_MAX = 600.0
"""Until the link is printed. The command may have to install the service first."""

LINK = re.compile(r"https://\S+/dashboard/#link=[\w-]+")
BOOT_MS = 90_000


def types_at_a_prompt(
    person: Person,
    command: Sequence[str | Path],
    directory: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run the service in a terminal and, in the browser, type at the prompt of a board."""
    near, far = pty.openpty()
    service = subprocess.Popen(
        [str(part) for part in command], stdout=far, stderr=far, cwd=directory, env=environment
    )
    os.close(far)
    try:
        page = person.page
        page.goto(printed_link(near))
        page.get_by_text("2 warm").wait_for(timeout=BOOT_MS)
        assert "link=" not in page.url
        page.get_by_role("button", name="Open a console on uboot").click()
        terminal = page.locator(".xterm-accessibility-tree")
        expect(terminal).to_contain_text("=>", timeout=BOOT_MS)
        page.keyboard.type("echo 6 times 7 is $? and so on\n")
        expect(terminal).to_contain_text("6 times 7 is 0 and so on")
        page.screenshot(path=directory / "console.png")
        page.get_by_role("button", name="Release").click()
        page.get_by_role("heading", name="Overview").wait_for()
        assert not person.errors
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)
        os.close(near)


def printed_link(terminal: int) -> str:
    printed, deadline = "", time.monotonic() + PRINT_SECONDS_MAX
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                printed += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break  # every process at the other end has ended
        found = LINK.search(printed)
        if found is not None and printed.endswith("\n"):
            return found[0]
    raise AssertionError(f"no link was printed:\n{printed}")
