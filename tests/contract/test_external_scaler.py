"""KEDA's external scaler: real gRPC with real certificates, over a lab in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.kinds.rbac import Role, RoleBinding
from bullpen.api.kinds.virtualtargetpool import POOL_UID, VirtualTargetPool
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app import lab as labs
from bullpen.app.services import Services, pool_loads
from bullpen.app.sources import Sources
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.datadir import certificates
from bullpen.protocol import externalscaler_pb2 as pb
from bullpen.protocol import externalscaler_pb2_grpc
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.services.grpc.external_scaler import ExternalScalerServicer, ScalerServer
from bullpen.services.grpc.server import Tls
from bullpen.sim.keys import cheap_keys
from bullpen.store.journaled import MemoryStore
from support.client_certificates import authority, certificate

SPACE = "default"
CALL_SECONDS_MAX = 30.0
SETTINGS = labs.LabSettings(endpoint="lab:8082", ca_pem="PEM", unmatched_wait=timedelta(hours=1))
RBAC = "rbac.authorization.k8s.io"
READER = {
    "verbs": ["get"],
    "apiGroups": ["virtualtarget.jumpstarter.dev"],
    "resources": ["virtualtargetpools", "exportersets"],
}
NO_CONNECTION = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

K = TypeVar("K", bound=Kind)


@dataclass(frozen=True, kw_only=True)
class Scaler:
    """A lab with a pool of two, of which one is leased, and the port that KEDA calls."""

    objects: RegistryObjects
    port: int
    pki: Path
    tmp: Path

    @contextlib.asynccontextmanager
    async def calling(self, user: str = "keda", ca: Path | None = None) -> AsyncIterator[Any]:
        """A caller with a certificate of this name, by the trusted authority or another."""
        signing = ca or self.pki
        directory = self.tmp / user.replace("/", "_").replace(":", "_")
        directory.mkdir(exist_ok=True)
        shown = certificate(directory, f"/CN={user}", signing / "ca.crt", signing / "ca.key")
        async with self._channel(
            private_key=Path(shown["client-key"]).read_bytes(),
            certificate_chain=Path(shown["client-certificate"]).read_bytes(),
        ) as stub:
            yield stub

    @contextlib.asynccontextmanager
    async def _channel(self, **own: bytes) -> AsyncIterator[Any]:
        root = (self.pki / "ca.crt").read_bytes()
        credentials = grpc.ssl_channel_credentials(root_certificates=root, **own)
        address = f"localhost:{self.port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            stub: Any = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
            yield stub

    def anonymous(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return self._channel()

    async def wait_for_lease(self, name: str, **labels: str) -> None:
        spec = LeaseSpec(
            client_ref=LocalObjectReference(name="me"),
            selector=LabelSelector(match_labels=labels),
            duration=timedelta(hours=1),
        )
        await self.objects.create(Lease(metadata=meta(name), spec=spec))

    async def make_members(self) -> None:
        """Two members of the pool."""
        found = await self.objects.get(VirtualTargetPool, SPACE, "runners")
        uid = found.metadata.uid
        selector = f"{POOL_UID}={uid}"
        status = replace(found.status, replicas=2, ready_replicas=2, selector=selector)
        await self.objects.update_status(replace(found, status=status))
        for name in ("runners-0", "runners-1"):
            owned = replace(meta(name), labels={POOL_UID: uid, "role": "runner"})
            await self.objects.create(Exporter(metadata=owned))

    async def set_leased(self, leased: bool) -> None:
        """Let a lease hold the first member, or none."""
        found = await self.objects.get(Exporter, SPACE, "runners-0")
        held = LocalObjectReference(name="held") if leased else None
        status = replace(found.status, lease_ref=held, lease_uid="7" if leased else "")
        await self.objects.update_status(replace(found, status=status))


def meta(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace=SPACE)


def ref(**metadata: str) -> Any:
    return pb.ScaledObjectRef(
        name="scaled", namespace=SPACE, scalerMetadata={"name": "runners", **metadata}
    )


async def value(stub: Any, metric: str, **metadata: str) -> float:
    request = pb.GetMetricsRequest(
        scaledObjectRef=ref(metric=metric, **metadata), metricName=metric
    )
    answer = await stub.GetMetrics(request, timeout=CALL_SECONDS_MAX)
    (found,) = answer.metricValues
    assert found.metricName == metric
    return float(found.metricValueFloat)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def allowed(stub: Any) -> bool:
    try:
        await stub.IsActive(ref(), timeout=CALL_SECONDS_MAX)
    except grpc.aio.AioRpcError:
        return False
    return True


async def eventually(look: Any, wanted: object) -> None:
    """Wait until ``look`` returns what is wanted: writes reach the views a little later."""
    end = asyncio.get_running_loop().time() + CALL_SECONDS_MAX
    while (found := await look()) != wanted:
        assert asyncio.get_running_loop().time() < end, f"{found}, not {wanted}"
        await asyncio.sleep(0.01)


async def fill(objects: RegistryObjects) -> None:
    await objects.create(Client(metadata=meta("me")))
    runners = {
        "replicas": 2,
        "scaleDownPolicy": "NewestFirst",
        "template": {
            "metadata": {"labels": {"role": "runner"}},
            "spec": {"virtualTargetClassName": "any"},
        },
    }
    boards = {
        "virtualTargetClassName": "any",
        "selector": {"matchLabels": {"board": "x"}},
        "template": {"metadata": {"labels": {"board": "x"}}},
    }
    keda = {
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "keda"}],
    }
    await objects.create(made(VirtualTargetPool, "runners", spec=runners))
    await objects.create(made(ExporterSet, "boards", spec=boards))
    await objects.create(made(Role, "reader", rules=[READER]))
    await objects.create(made(RoleBinding, "keda", **keda))


def made(kind: type[K], name: str, **fields: Any) -> K:
    return codec.decode(kind, {"metadata": {"name": name, "namespace": SPACE}, **fields})


@pytest.fixture
async def scaler(tmp_path: Path) -> AsyncIterator[Scaler]:
    sources = Sources.real()
    registry = Registry(MemoryStore(), clock=sources.clock, ids=sources.ids)
    await registry.ensure_namespaces((SPACE, "other"))
    objects = RegistryObjects(registry, manager="test")
    await fill(objects)
    pki = tmp_path / "pki"
    pki.mkdir()
    certs = certificates.ensure(pki, ("localhost",), now=sources.clock.now())
    lab = labs.Lab(
        objects, SETTINGS, sources, role=labs.Role.LEASES, keys=cheap_keys(sources.clock)
    )
    Services.of(lab)
    loads, access = pool_loads(lab), lab.access_index

    async def allows(user: User, request: Attributes) -> bool:
        return access.decide(user, request).allowed

    server = ScalerServer(
        address="localhost:0",
        tls=Tls(chain=certs.server_chain.read_bytes(), key=certs.server_key.read_bytes()),
        authorities=certs.ca_pem(),
    )
    servicer = ExternalScalerServicer(loads, allows)
    async with lab.running(()), server.serving(servicer):
        made = Scaler(objects=objects, port=server.port, pki=pki, tmp=tmp_path)
        await made.make_members()
        await made.set_leased(True)
        yield made


async def test_keda_learns_of_waiting_leases_and_utilisation(scaler: Scaler) -> None:
    async with scaler.calling() as keda:
        await eventually(lambda: value(keda, "utilization"), 50.0)
        assert await value(keda, "leases") == 1.0
        for name in ("a", "b", "c"):
            await scaler.wait_for_lease(name, role="runner")
        await scaler.wait_for_lease("elsewhere", role="desktop")
        await eventually(lambda: value(keda, "waitingLeases"), 3.0)
        assert await value(keda, "leases") == 4.0
        assert await value(keda, "utilization") == 50.0


async def test_keda_learns_of_exporter_sets_too(scaler: Scaler) -> None:
    async with scaler.calling() as keda:
        await scaler.wait_for_lease("a", board="x")
        pool = {"name": "boards", "kind": "ExporterSet"}
        await eventually(lambda: value(keda, "waitingLeases", **pool), 1.0)
        assert await value(keda, "utilization", **pool) == 100.0, "no member, and a lease waits"
        assert await value(keda, "waitingLeases") == 0.0, "a lease counts for one pool"


async def test_the_metric_and_its_target_are_those_of_the_trigger(scaler: Scaler) -> None:
    async with scaler.calling() as keda:
        (usual,) = (await keda.GetMetricSpec(ref())).metricSpecs
        assert (usual.metricName, usual.targetSizeFloat) == ("leases", 1.0)
        asked = ref(metric="utilization", target="62.5")
        (given,) = (await keda.GetMetricSpec(asked)).metricSpecs
        assert (given.metricName, given.targetSize, given.targetSizeFloat) == (
            "utilization",
            63,
            62.5,
        )


async def test_a_pushed_trigger_hears_of_the_first_lease_and_of_the_last(scaler: Scaler) -> None:
    await scaler.set_leased(False)
    async with scaler.calling() as keda, asyncio.timeout(CALL_SECONDS_MAX):
        stream = keda.StreamIsActive(ref())
        heard = aiter(stream)
        first = (await anext(heard)).result
        if first:
            # The status without a leased member had not reached the view yet.
            first = (await anext(heard)).result
        assert first is False
        await scaler.wait_for_lease("a", role="runner")
        assert (await anext(heard)).result is True
        await scaler.objects.delete(await scaler.objects.get(Lease, SPACE, "a"))
        assert (await anext(heard)).result is False
        stream.cancel()


async def test_without_a_certificate_of_the_authority_there_is_no_connection(
    scaler: Scaler, tmp_path: Path
) -> None:
    async with scaler.anonymous() as stranger:
        assert (await refused(stranger.IsActive(ref(), timeout=10))).code() in NO_CONNECTION
    other = authority(tmp_path / "other")[0].parent
    async with scaler.calling("keda", ca=other) as stranger:
        assert (await refused(stranger.IsActive(ref(), timeout=10))).code() in NO_CONNECTION


async def test_a_user_sees_only_pools_that_its_roles_allow(scaler: Scaler) -> None:
    async with scaler.calling("mallory") as mallory:
        for pool in ("runners", "no-such-pool"):
            error = await refused(mallory.IsActive(ref(name=pool)))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED, "exists or not"
            assert "mallory may not get virtualtargetpools" in (error.details() or "")
        stream = mallory.StreamIsActive(ref())
        assert (await refused(anext(aiter(stream)))).code() is grpc.StatusCode.PERMISSION_DENIED
    async with scaler.calling() as keda:
        elsewhere = ref(namespace="other")
        assert (await refused(keda.IsActive(elsewhere))).code() is (
            grpc.StatusCode.PERMISSION_DENIED
        )
        absent = await refused(keda.IsActive(ref(name="no-such-pool")))
        assert absent.code() is grpc.StatusCode.NOT_FOUND


async def test_a_certificate_cannot_make_an_administrator(scaler: Scaler) -> None:
    async with scaler.calling("eve/O=system:masters") as eve:
        assert (await refused(eve.IsActive(ref()))).code() is grpc.StatusCode.PERMISSION_DENIED
    async with scaler.calling("system:admin") as reserved:
        error = await refused(reserved.IsActive(ref()))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_right_that_is_taken_away_ends_the_stream(scaler: Scaler) -> None:
    async with scaler.calling() as keda, asyncio.timeout(CALL_SECONDS_MAX):
        heard = aiter(keda.StreamIsActive(ref()))
        await anext(heard)
        found = await scaler.objects.get(RoleBinding, SPACE, "keda")
        await scaler.objects.delete(found)
        await eventually(lambda: allowed(keda), False)
        await scaler.set_leased(False)
        assert (await refused(anext(heard))).code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kind": "Deployment"}, "metadata.kind: must be one of VirtualTargetPool, ExporterSet"),
        ({"name": ""}, "metadata.name: give the name of the pool"),
        ({"metric": "cpu"}, "metadata.metric: must be one of leases, waitingLeases, utilization"),
        ({"target": "-1"}, "metadata.target: must be a number above 0"),
        ({"target": "many"}, "metadata.target: must be a number above 0"),
    ],
)
async def test_a_wrong_trigger_is_refused_by_its_field(
    scaler: Scaler, given: dict[str, str], text: str
) -> None:
    async with scaler.calling() as keda:
        error = await refused(keda.GetMetricSpec(ref(**given)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == text
