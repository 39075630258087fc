"""The label by which a Service finds the Pod of the leader.

Standbys are Ready, too, so that a Deployment with a standby is healthy; readiness therefore
cannot tell which replica serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.api.pod import LEADER, Pod
from bullpen.errors import Gone, LabError, NotFound

RETRY_SECONDS = 1.0

log = logging.getLogger("bullpen.leadership")


class LeaderLabel:
    """Labels the Pod of this process; does nothing outside a Pod."""

    def __init__(self, objects: Objects, *, namespace: str, pod: str, leadership: str) -> None:
        """``pod`` is the name of our Pod; empty outside a Pod."""
        self._objects = objects
        self._namespace = namespace
        self._pod = pod
        self._leadership = leadership

    async def move_here(self) -> None:
        """Label our Pod, then no other; retried until it succeeds."""
        told = ""
        while self._pod:
            try:
                await self._label(self._pod, {LEADER: self._leadership})
                await self._clear_others()
            except LabError as error:
                if str(error) != told:
                    told = str(error)
                    text = "the leader's Pod has no label, so its Service does not select it"
                    log.warning(text, extra={"key": self._pod, "cause": told})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def remove(self) -> None:
        """Remove the label that an earlier process of our Pod may have left."""
        if not self._pod:
            return
        try:
            found = await self._objects.get(Pod, self._namespace, self._pod)
            if LEADER in found.metadata.labels:
                await self._label(self._pod, {})
        except LabError as error:
            # The leader removes it as well, when it takes over.
            log.warning("label not removed", extra={"key": self._pod, "cause": str(error)})

    async def _clear_others(self) -> None:
        pages = self._objects.pages(
            Pod, namespace=self._namespace, labels=f"{LEADER}={self._leadership}"
        )
        async with contextlib.aclosing(pages):
            async for page in pages:
                for pod in page:
                    if pod.metadata.name != self._pod:
                        with contextlib.suppress(NotFound, Gone):
                            await self._label(pod.metadata.name, {})

    async def _label(self, pod: str, labels: dict[str, str]) -> None:
        """Apply our labels to a Pod; one that is not in ``labels`` any more is removed."""
        meta = ObjectMeta(name=pod, namespace=self._namespace, labels=labels)
        await self._objects.apply(Pod(metadata=meta))
