"""Removes members of pools by name, from Python: the scaledownwith subresource of either home.

For programs that know which machine is to go, such as the autoscaler of a CI system. ``bullpen
scale-down`` does the same on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.api.scale_down import removal_path
from bullpen.cluster import kubeconfig
from bullpen.cluster.kubeconfig import Access, Surroundings
from bullpen.cluster.transport import Request, Transport
from bullpen.errors import BadRequest
from bullpen.kit.clock import SystemClock

AGENT = "bullpen-client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member that is meant by its uid too, for pools that use names again."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledDown:
    """What a removal did, or would do."""

    replicas: int
    """The count of the pool afterwards; of an ExporterSet, its maxReplicas."""

    leaving: tuple[str, ...]
    """Members that leave because of this call."""

    already_leaving: tuple[str, ...]
    """Members that had left or were on their way: nothing changes for them."""


class Pools:
    """The pools of one API server. Use it as an asynchronous context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._transport = Transport(access, agent=AGENT)

    @classmethod
    def of(cls, path: Path, *, environment: Mapping[str, str] | None = None) -> Pools:
        """The current context of a kubeconfig; raises ``Refused`` if it cannot be used.

        Credential plug-ins are run only with an ``environment``, such as ``os.environ``.
        """
        around = None
        if environment is not None:
            around = Surroundings(clock=SystemClock(), environment=environment)
        return cls(kubeconfig.load(path, surroundings=around))

    async def __aenter__(self) -> Pools:
        self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.close()

    async def scale_down(
        self,
        pool: str,
        targets: Iterable[str | Member],
        *,
        namespace: str = "",
        when_idle: bool = False,
        dry_run: bool = False,
    ) -> ScaledDown:
        """Remove members of ``virtualtargetpool/NAME`` or ``exporterset/NAME``.

        All are checked first; then they leave and the count falls by as many, as one change.
        Calling it again changes nothing more. Raises ``BadRequest`` for a target that is no
        member, and ``Conflict`` for one that is leased, unless ``when_idle``.
        """
        word, _, name = pool.partition("/")
        resource = _resource(word)
        if not name:
            raise BadRequest(f"{pool}: write virtualtargetpool/NAME or exporterset/NAME")
        body = {"targets": [_named(each) for each in targets], "whenIdle": when_idle}
        answer = await self._transport.call(
            Request(
                verb="create",
                resource=f"{resource.plural}/scaledownwith",
                method="POST",
                path=removal_path(resource, namespace or self._access.namespace, name),
                query={"dryRun": "All"} if dry_run else {},
                body=body,
            )
        )
        status = answer["status"]
        return ScaledDown(
            replicas=status["replicas"],
            leaving=tuple(status["leaving"]),
            already_leaving=tuple(status["alreadyLeaving"]),
        )


def _resource(word: str) -> Resource:
    for resource in RESOURCES:
        if resource.named_removal and word.lower() in (resource.singular, resource.plural):
            return resource
    raise BadRequest(f"{word} is no kind of pool; use virtualtargetpool or exporterset")


def _named(target: str | Member) -> object:
    if isinstance(target, Member):
        return {"name": target.name, "uid": target.uid}
    return target
