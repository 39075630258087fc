"""Runs an exporter, with Jumpstarter's own library, and resets it between leases.

This runs in a fork of the zygote, or in a container. Unlike ``jmp run``, it waits for a
service that restarts, can exit after one lease, and reports why it ended.

The driver tree is created anew for every lease, so the next lessee never gets the last one's
disks. The reset ensures that nothing else is passed on either, and reports "available" to
the service only afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pydantic
from jumpstarter.common import ExporterStatus
from jumpstarter.config.exporter import ExporterConfigV1Alpha1, HookConfigV1Alpha1
from jumpstarter.exporter.hooks import HookExecutionError, HookExecutor

from bullpen.core.targets.instances import ExitReason
from bullpen.drivers import downloads, kvm_trial
from bullpen.drivers.target_files import AttachedDisk
from bullpen.placements.local import layout, processes
from bullpen.placements.local.lasting_device import LastingDevice
from bullpen.placements.local.wire import (
    DISK_CHANGES,
    DisksChanged,
    Exited,
    Frames,
    KvmFailed,
    Paused,
    Registered,
    Spawn,
    frame,
)

log = logging.getLogger("bullpen.exporter")

DETAIL_LENGTH_MAX = 500

PATIENCE: dict[str, str | int] = {
    # Without this an exporter gives up, and its target is lost, when the service is unavailable for
    # longer than a few quick retries.
    "grpc.service_config": json.dumps(
        {
            "methodConfig": [
                {"name": [{"service": "jumpstarter.v1.ControllerService"}], "waitForReady": True}
            ]
        }
    ),
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 1000,
}
"""Calls wait until the service is reachable. The supervisor ends this process if it never is."""

READ_BYTES = 1 << 16
CLOSE_SECONDS_MAX = 30.0
"""How long drivers may take to close after a lease."""

PAUSED_LOOK_SECONDS = 5.0
"""How often a lasting machine is asked whether it is paused for want of space."""

RESET_LOOKS_MAX = 50

RESET_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Ending:
    reason: ExitReason
    detail: str = ""


def run(spawn: Spawn, report: socket.socket, *, on_orphaned: Callable[[], None]) -> None:
    """Serve until the end, and report the reason of the end."""
    ending = asyncio.run(_serve(spawn, report, on_orphaned))
    log.info("ended: %s %s", ending.reason, ending.detail)
    told = Exited(key=spawn.key, reason=ending.reason, detail=ending.detail[:DETAIL_LENGTH_MAX])
    with contextlib.suppress(OSError):
        report.sendall(frame(told))


async def _serve(spawn: Spawn, report: socket.socket, on_orphaned: Callable[[], None]) -> Ending:
    def kvm_failed(arch: str, problem: str) -> None:
        told = KvmFailed(key=spawn.key, arch=arch, problem=problem[:DETAIL_LENGTH_MAX])
        report.sendall(frame(told))

    def paused(problem: str) -> None:
        told = Paused(key=spawn.key, problem=problem[:DETAIL_LENGTH_MAX])
        report.sendall(frame(told))

    kvm_trial.report_to(kvm_failed)
    try:
        downloads.guard_drivers()
        config = read_config(bytes(spawn.config))
    except pydantic.ValidationError as error:
        return Ending(ExitReason.START_FAILED, said(error))
    async with config.create_exporter() as exporter:
        service = Service(
            exporter,
            token=spawn.token,
            single_use=spawn.single_use,
            lasting=LastingDevice(exporter.device_factory) if spawn.keep else None,
            on_registered=lambda: report.sendall(frame(Registered(key=spawn.key))),
            on_paused=paused,
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, service.terminate)
        loop.add_signal_handler(signal.SIGHUP, service.retire)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

        def orphaned() -> None:
            on_orphaned()
            service.terminate()

        async with asyncio.TaskGroup() as tasks:
            commands = Commands(spawn, report, service, tasks, on_orphaned=orphaned)
            loop.add_reader(report, commands.read)
            try:
                return await service.run()
            finally:
                loop.remove_reader(report)


class Commands:
    """What the zygote tells this exporter while it runs."""

    def __init__(
        self,
        spawn: Spawn,
        report: socket.socket,
        service: Service,
        tasks: asyncio.TaskGroup,
        *,
        on_orphaned: Callable[[], None],
    ) -> None:
        self._key = spawn.key
        self._report = report
        self._service = service
        self._tasks = tasks
        self._on_orphaned = on_orphaned
        self._frames = Frames(DISK_CHANGES)

    def read(self) -> None:
        """The socket is readable: carry out commands, one at a time; or the zygote has ended."""
        try:
            data = self._report.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._report)
            self._on_orphaned()
            return
        for command in self._frames.feed(data):
            self._tasks.create_task(self._change(command.disks))

    async def _change(self, disks: tuple[AttachedDisk, ...]) -> None:
        problem = await self._service.change_disks(disks)
        told = DisksChanged(key=self._key, problem=problem[:DETAIL_LENGTH_MAX])
        with contextlib.suppress(OSError):  # the zygote is gone: then this exporter ends
            self._report.sendall(frame(told))


def read_config(text: bytes) -> ExporterConfigV1Alpha1:
    """Parse the config, with our timeouts. Raises pydantic's ``ValidationError``."""
    config = ExporterConfigV1Alpha1.model_validate_json(text)
    config.grpcOptions = {**PATIENCE, **(config.grpcOptions or {})}
    return config


def _problems(error: pydantic.ValidationError) -> str:
    """The errors and their places, without the values: those may be secret."""
    return "; ".join(
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False)
    )


class Service:
    """One exporter from registration to its end.

    The state of Jumpstarter's exporter is observed by overriding two of its public methods:
    ``session``, which registers, and ``session_for_lease``, which serves a lease.
    """

    def __init__(
        self,
        exporter: Any,
        *,
        token: str,
        single_use: bool,
        on_registered: Callable[[], None],
        lasting: LastingDevice | None = None,
        on_paused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``lasting``: the machine is kept between leases.

        ``on_paused`` is told why it is paused, and with an empty text that it goes on.
        """
        self._exporter = exporter
        self._token = token
        self._single_use = single_use
        self._on_registered = on_registered
        self._lasting = lasting
        self._on_paused = on_paused
        self._recycler: Recycler | None = None
        self._task: asyncio.Task[Any] | None = None
        self._registered = False
        self._leased = False
        self._served = False
        self._stopped = False
        self._terminated = False
        self._retired = False
        self._off = False
        self._stand_in()

    def _stand_in(self) -> None:
        register, serve = self._exporter.session, self._exporter.session_for_lease

        @contextlib.asynccontextmanager
        async def session() -> AsyncIterator[Any]:
            async with register() as found:
                self._registered = True
                self._on_registered()
                yield found

        @contextlib.asynccontextmanager
        async def session_for_lease() -> AsyncIterator[Any]:
            async with serve() as found:
                self._begin_lease()
                try:
                    yield found
                finally:
                    self._leased = False
                    self._stop_if_off()

        self._exporter.session = session
        self._exporter.session_for_lease = session_for_lease
        if self._lasting is not None:
            self._exporter.device_factory = self._lasting
        elif not self._single_use:
            self._recycler = Recycler(self._exporter.hook_executor, token=self._token)
            self._exporter.hook_executor = self._recycler

    def _begin_lease(self) -> None:
        self._leased = self._served = True
        if self._single_use:
            self.retire()

    async def change_disks(self, disks: tuple[AttachedDisk, ...]) -> str:
        """Let the machine have these disks; returns why it needs a restart, or nothing."""
        if self._lasting is None:
            return "its disks are attached at the begin of a lease"
        try:
            await self._lasting.change_disks(disks)
        except Exception as error:  # a driver's; the machine goes on
            log.warning("disks not changed: %s", said(error))
            return str(error) or said(error)
        return ""

    def terminate(self) -> None:
        """End now, even during a lease."""
        self._terminated = True
        self._stop()

    def retire(self) -> None:
        """End after the current lease, or at once if there is none."""
        self._retired = True
        if self._leased:
            self._exporter.stop(wait_for_lease_exit=True, should_unregister=True)
        else:
            self._stop()

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._registered:
            # A terminated exporter need not unregister: its supervisor knows, and a service that is
            # stopping would not answer.
            self._exporter.stop(should_unregister=not self._terminated)
        elif self._task is not None:
            self._task.cancel()

    async def run(self) -> Ending:
        self._task = asyncio.current_task()
        looking: asyncio.Task[None] | None = None
        try:
            if self._lasting is not None:
                await self._lasting.start(self._stop_if_off)
                looking = asyncio.create_task(self._look_for_pauses(self._lasting))
            await self._exporter.serve()
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        except Exception as error:
            log.exception("the exporter failed")
            return self._failed(said(error))
        finally:
            if looking is not None:
                looking.cancel()
            if self._lasting is not None:
                self._lasting.close()
        return self._ended()

    async def _look_for_pauses(self, lasting: LastingDevice) -> None:
        told = ""
        while True:
            await asyncio.sleep(PAUSED_LOOK_SECONDS)
            try:
                why = await lasting.paused()
            except Exception as error:  # a driver's; the machine goes on
                log.warning("its machine cannot be asked whether it is paused: %s", said(error))
                continue
            if why != told:
                told = why
                self._on_paused(why)

    def _stop_if_off(self) -> None:
        """End after the machine has ended; during a lease, the lessee may switch it on again."""
        if self._lasting is not None and not self._leased and self._lasting.has_ended():
            self._off = True
            self._stop()

    def _ended(self) -> Ending:
        if self._recycler is not None and self._recycler.problem:
            return Ending(ExitReason.RESET_FAILED, self._recycler.problem)
        if self._exporter.exit_code:
            return Ending(ExitReason.CRASHED, "a lease hook failed and requested the exit")
        if self._off and self._lasting is not None:
            reason = ExitReason.CRASHED if self._lasting.code else ExitReason.COMPLETED
            return Ending(reason, self._lasting.ended())
        if self._terminated:
            return self._failed("it was told to stop")
        if self._retired:
            return Ending(ExitReason.COMPLETED, "served its lease" if self._served else "retired")
        return self._failed("the exporter exited by itself")

    def _failed(self, detail: str) -> Ending:
        reason = ExitReason.CRASHED if self._registered else ExitReason.START_FAILED
        return Ending(reason, detail)


def said(error: BaseException) -> str:
    """The first cause of an error, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, pydantic.ValidationError):
        return f"its settings are invalid: {_problems(error)}"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"the service answered {error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


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
        try:
            in_time = await closed(device)
        except Exception as error:
            # Jumpstarter would offer the target again after any other error than ours.
            log.exception("drivers did not close")
            self.problem = f"its drivers did not close: {said(error)}"
        else:
            late = f"its drivers did not close within {CLOSE_SECONDS_MAX:g} s"
            self.problem = "" if in_time else late
        if not self.problem:
            self.problem = await reset(Path(tempfile.gettempdir()), token=self._token)
        if self.problem:
            # Jumpstarter then informs the client, goes offline and ends with the lease.
            raise HookExecutionError(
                message=self.problem, on_failure="exit", hook_type="after_lease"
            )


async def closed(device: Any, seconds: float = CLOSE_SECONDS_MAX) -> bool:
    """Close the drivers; False if that takes too long.

    A driver that hangs stays in a thread of its own, which does not keep this process from ending.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    failures: list[Exception] = []

    def close() -> None:
        try:
            device.close()
        except Exception as error:
            failures.append(error)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=close, name="close-drivers", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await done.wait()
    except TimeoutError:
        return False
    for error in failures:
        raise error
    return True


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
