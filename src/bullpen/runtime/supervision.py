"""Keeps a long-running part of the service running when it fails unexpectedly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bullpen.runtime.retry import Retry

log = logging.getLogger("bullpen.runtime")


async def supervise(part: str, run: Callable[[], Awaitable[None]], *, retry: Retry) -> None:
    """Run ``run`` until cancelled; after an exception, start it again with backoff.

    A defect in one part must not end the process: every restart would hit the same defect.
    """
    failures = 0
    while True:
        try:
            await run()
        except Exception:
            failures += 1
            delay = retry(failures)
            facts = {"key": part, "failures": failures, "retry": delay}
            log.exception("part failed and is started again", extra=facts)
            await asyncio.sleep(delay.total_seconds())
        else:
            return
