"""Between two leases of a reusable instance: resets it, then verifies that it is clean.

The driver tree is created anew for every lease, so the next lessee never gets the last
one's disks. This ensures that nothing else is passed on either, and reports "available" to
the service only afterwards.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jumpstarter.common import ExporterStatus
from jumpstarter.config.exporter import HookConfigV1Alpha1
from jumpstarter.exporter.hooks import HookExecutionError, HookExecutor

from bullpen.placements.local import layout, processes

RESET_LOOKS_MAX = 50
RESET_LOOK_SECONDS = 0.05

_ReportStatus = Callable[[ExporterStatus, str], Awaitable[None]]


class Recycler(HookExecutor):
    """Runs the configured hooks; a lease is over only after the target was reset."""

    def __init__(self, configured: HookExecutor | None, *, token: str) -> None:
        super().__init__(config=configured.config if configured else HookConfigV1Alpha1())
        self.problem = ""
        self._token = token

    async def run_after_lease_hook(
        self,
        lease_scope: Any,
        report_status: _ReportStatus,
        shutdown: Callable[..., None],
        request_lease_release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        async def report(status: ExporterStatus, message: str = "") -> None:
            if status is ExporterStatus.AVAILABLE:
                await report_status(ExporterStatus.AFTER_LEASE_HOOK, "Resetting the target")
                await self._reset(lease_scope.session.root_device)
            await report_status(status, message)

        await super().run_after_lease_hook(lease_scope, report, shutdown, request_lease_release)

    async def _reset(self, device: Any) -> None:
        await asyncio.to_thread(device.close)
        self.problem = await reset(Path(tempfile.gettempdir()), token=self._token)
        if self.problem:
            # Jumpstarter then informs the client, goes offline and ends with the lease.
            raise HookExecutionError(
                message=self.problem, on_failure="exit", hook_type="after_lease"
            )


async def reset(temporary: Path, *, token: str) -> str:
    """Kill the processes and delete the files of the lease; returns what could not be removed."""
    for _ in range(RESET_LOOKS_MAX):
        others = await asyncio.to_thread(processes.kill_others, token)
        if not others:
            break
        await asyncio.sleep(RESET_LOOK_SECONDS)
    else:
        return f"processes of the last lease cannot be stopped: {others}"
    left = await asyncio.to_thread(_empty, temporary)
    return f"files of the last lease cannot be erased: {', '.join(left)}" if left else ""


def _empty(directory: Path) -> list[str]:
    """Delete the contents of a directory; returns the names of what is left."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            layout.wipe(path)
        else:
            path.unlink(missing_ok=True)
    return sorted(path.name for path in directory.iterdir())
