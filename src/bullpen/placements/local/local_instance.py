"""One instance on this host, as the supervisor tracks it."""

from __future__ import annotations

import asyncio
import platform
from dataclasses import replace
from pathlib import Path

from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.placements.base import Key
from bullpen.placements.local.layout import State
from bullpen.placements.local.wire import Hello


class LocalInstance:
    """An instance on this host: its state, and the tasks that work on it."""

    def __init__(self, state: State, directory: Path, *, detail: str) -> None:
        self.state = state
        self.directory = directory
        self.instance = Instance(
            key=state.key,
            owner_uid=state.owner_uid,
            provisioner=state.provisioner,
            phase=InstancePhase.BOOTING,
            detail=detail,
            host=platform.node(),
        )
        self.spawned = False
        """The zygote was asked to fork it."""

        self.changed: asyncio.Future[str] | None = None
        """The answer to a change of its disks that is under way."""

        self.launching: asyncio.Task[None] | None = None
        self.cleaning: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        """No process of it is left."""

        self.removing: asyncio.Task[str] | None = None
        """Results in the error that prevented the removal; empty on success."""

    @property
    def key(self) -> Key:
        return self.state.key

    @property
    def exited(self) -> bool:
        return self.instance.phase is InstancePhase.EXITED

    def register(self) -> None:
        self.instance = replace(self.instance, phase=InstancePhase.RUNNING, detail="registered")

    def pause(self, why: str) -> None:
        """Its machine is paused; with an empty reason, it goes on."""
        self.instance = replace(self.instance, paused=why)

    def warn(self, warning: str) -> None:
        self.instance = replace(self.instance, warning=warning)

    def answer(self, problem: str) -> None:
        """The change of its disks is done, or cannot be."""
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(problem)

    def exit(self, reason: ExitReason, detail: str) -> None:
        self.answer("it ended")
        self.instance = replace(
            self.instance, phase=InstancePhase.EXITED, reason=reason, detail=detail
        )

    def take_over(self, hello: Hello | None) -> None:
        """Take over from a previous process; ``hello`` is that of its zygote, if it lives."""
        children = {child.key: child for child in hello.children} if hello else {}
        ended = {exited.key: exited for exited in hello.ended} if hello else {}
        if (child := children.get(self.key)) is not None:
            self.spawned = True
            if child.registered:
                self.register()
            self.pause(child.paused)
            return
        self.gone.set()
        if (verdict := ended.get(self.key)) is not None:
            self.exit(verdict.reason, verdict.detail)
        else:
            self.exit(ExitReason.LOST, "it exited while the service was not running")
