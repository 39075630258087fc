"""A real Chromium at the dashboard of a real service."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from support.real_service import Service

AXE = Path(__file__).parents[2] / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
WAIT_MS = 30_000
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; Playwright's own is not downloaded."""
    path = shutil.which("chromium")
    assert path is not None, "there is no chromium; run 'make test-tools'"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Person:
    """Somebody at the dashboard, in a browser profile of their own."""

    def __init__(
        self, browser: Browser, *, size: dict[str, int] | None = None, dark: bool = False
    ) -> None:
        self._context = browser.new_context(
            ignore_https_errors=True,
            viewport=size or WIDE,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
        )
        self._context.set_default_timeout(WAIT_MS)
        self.page: Page = self._context.new_page()
        self.errors: list[str] = []
        """What the browser complained about."""

        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location})")

    def close(self) -> None:
        self._context.close()

    def open_link(self, service: Service, *, through: int | None = None) -> None:
        """Sign in with the link that the command prints; ``through`` another port."""
        link = service.bullpen("dashboard").stdout.strip()
        if through is not None:
            port = service.endpoints["apiserver"].rpartition(":")[2]
            link = link.replace(f":{port}/", f":{through}/")
        self.page.goto(link)
        self.page.get_by_role("heading", name="Overview").wait_for()

    def sign_in(self, service: Service, token: str) -> None:
        self.sign_in_at(service.endpoints["dashboard"], token)

    def sign_in_at(self, address: str, token: str) -> None:
        self.page.goto(address)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Overview").wait_for()

    def visit(self, page: str) -> None:
        self.page.get_by_role("navigation").get_by_role("link", name=page).click()
        self.page.get_by_role("heading", name=page, level=1).wait_for()

    def serious_problems(self) -> list[str]:
        """What axe finds on the page that keeps people from using it."""
        self.page.evaluate(AXE.read_text())
        found: Any = self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]


class Relay:
    """A connection between browser and service that can be cut, and restored."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection, and accept no new one."""
        with self._lock:
            self._is_cut = True
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def restore(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_pass, args=pair, daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.close()
