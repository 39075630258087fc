"""Removal by name in a cluster: who is believed, who may, and that it is the same decision."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bullpen.api import codec
from bullpen.api.kinds.core import ConfigMap
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.objects import Objects
from bullpen.apiserver.aggregated import AggregatedService
from bullpen.apiserver.http import Request
from bullpen.cluster import front_proxy
from bullpen.cluster.front_proxy import FrontProxy, user_of_headers
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.datadir import certificates
from bullpen.errors import LabError, Refused, Unauthorized
from bullpen.kit.clock import SystemClock
from support.objects_homes import http_home

SPACE = "lab"
GROUP = "/apis/subresources.virtualtarget.jumpstarter.dev"
PATH = f"{GROUP}/v1alpha1/namespaces/{SPACE}/virtualtargetpools/p/scaledownwith"
PROXY = FrontProxy(ca_pem="PEM", names=frozenset({"bullpen"}))
ALICE = (("x-remote-user", "alice"), ("x-remote-group", "edit"), ("x-remote-group", "more"))


def proxy_certificate() -> bytes:
    """A certificate whose common name is bullpen, as the handshake hands it over."""
    now = SystemClock().now()
    made = certificates.issue(certificates.make_authority(now=now), ("localhost",), now=now)
    return x509.load_pem_x509_certificate(made.certificate).public_bytes(Encoding.DER)


class Cluster:
    """What the cluster would answer, and what it was asked."""

    def __init__(self, objects: Objects, *, proxy: FrontProxy | None = PROXY) -> None:
        self.objects = objects
        self.asked: list[tuple[User, Attributes]] = []
        self.service = AggregatedService(
            objects, proxy=proxy, user_of_token=self._user_of_token, allows=self._allows
        )

    async def _user_of_token(self, token: str) -> User | None:
        return User(name="robot", groups=("edit",)) if token == "valid" else None

    async def _allows(self, user: User, request: Attributes) -> bool:
        self.asked.append((user, request))
        return "edit" in user.groups

    async def call(self, path: str = PATH, body: Any = None, **fields: Any) -> tuple[int, Any]:
        """Status and answer of a request, as the HTTP server passes it on."""
        request = Request(
            method="POST" if body is not None else "GET",
            path=path,
            query={},
            body=json.dumps(body).encode() if body is not None else b"",
            **{"headers": {}, "certificate": proxy_certificate(), "remote": ALICE, **fields},
        )
        try:
            caller = await self.service.authenticate(request)
        except LabError as error:
            response = self.service.refuse(request, error)
        else:
            response = await self.service.respond(request, caller)
        assert isinstance(response.body, bytes)
        return response.status, json.loads(response.body)

    async def pool(self) -> VirtualTargetPool:
        return await self.objects.get(VirtualTargetPool, SPACE, "p")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A pool of three, in objects that are reached over HTTP as a cluster's are."""
    async with http_home() as home:
        spec = {
            "replicas": 3,
            "scaleDownPolicy": "Explicit",
            "template": {"spec": {"virtualTargetClassName": "any"}},
        }
        document = {"metadata": {"name": "p", "namespace": SPACE}, "spec": spec}
        pool = await home.objects.create(codec.decode(VirtualTargetPool, document))
        owner = OwnerReference(
            api_version=pool.api_version,
            kind=pool.kind,
            name="p",
            uid=pool.metadata.uid,
            controller=True,
        )
        for number in range(3):
            meta = {"name": f"p-{number}", "namespace": SPACE}
            made = codec.decode(
                VirtualTarget, {"metadata": meta, "spec": {"virtualTargetClassName": "any"}}
            )
            meta_owned = ObjectMeta(
                name=made.metadata.name, namespace=SPACE, owner_references=(owner,)
            )
            await home.objects.create(VirtualTarget(metadata=meta_owned, spec=made.spec))
        yield Cluster(home.objects)


async def test_members_and_count_are_one_write_of_an_explicit_pool(cluster: Cluster) -> None:
    status, answer = await cluster.call(body={"targets": ["p-1"]})
    assert (status, answer["status"]["replicas"], answer["status"]["leaving"]) == (201, 2, ["p-1"])
    written = await cluster.pool()
    assert (written.spec.replicas, [r.name for r in written.spec.removals]) == (2, ["p-1"])
    status, again = await cluster.call(body={"targets": ["p-1"]})
    assert (status, again["status"]["replicas"], again["status"]["leaving"]) == (201, 2, [])
    assert (await cluster.pool()).metadata.generation == written.metadata.generation


async def test_the_rules_of_the_cluster_decide_about_the_caller_that_it_names(
    cluster: Cluster,
) -> None:
    await cluster.call(body={"targets": ["p-1"]})
    ((user, wanted),) = cluster.asked
    assert (user.name, user.groups) == ("alice", ("edit", "more"))
    assert (wanted.verb, wanted.group) == ("create", GROUP.removeprefix("/apis/"))
    assert (wanted.resource, wanted.subresource) == ("virtualtargetpools", "scaledownwith")
    eve = (("x-remote-user", "eve"),)
    status, answer = await cluster.call(body={"targets": ["p-2"]}, remote=eve)
    assert status == 403
    assert 'User "eve" cannot create resource' in answer["message"]
    assert (await cluster.pool()).spec.replicas == 2


async def test_only_the_front_proxy_may_name_a_caller(cluster: Cluster) -> None:
    for fields in ({"certificate": b""}, {"certificate": b"", "remote": ()}):
        status, answer = await cluster.call(body={"targets": ["p-1"]}, **fields)
        assert (status, answer["reason"]) == (401, "Unauthorized")
    stranger = FrontProxy(ca_pem="PEM", names=frozenset({"somebody-else"}))
    other = Cluster(cluster.objects, proxy=stranger)
    assert (await other.call(body={"targets": ["p-1"]}))[0] == 401
    assert not cluster.asked
    assert (await cluster.pool()).spec.replicas == 3


async def test_a_direct_caller_is_authenticated_by_its_token(cluster: Cluster) -> None:
    for token, expected in (("valid", 201), ("stolen", 401)):
        headers = {"authorization": f"Bearer {token}"}
        body = {"targets": ["p-1"]}
        assert (await cluster.call(body=body, certificate=b"", headers=headers))[0] == expected


async def test_the_cluster_learns_what_is_served(cluster: Cluster) -> None:
    status, found = await cluster.call(f"{GROUP}/v1alpha1")
    assert status == 200
    assert {entry["name"] for entry in found["resources"]} == {
        "virtualtargetpools/scaledownwith",
        "exportersets/scaledownwith",
    }
    assert (await cluster.call(GROUP))[1]["kind"] == "APIGroup"
    for path in ("/apis", "/metrics", "/apis/virtualtarget.jumpstarter.dev/v1alpha1", PATH):
        assert (await cluster.call(path))[0] in (404, 405), path


async def test_what_the_cluster_publishes_about_its_front_proxy_is_checked() -> None:
    async with http_home() as home:
        data = {
            "requestheader-client-ca-file": "PEM",
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }

        async def publish(**changes: str) -> FrontProxy:
            meta = ObjectMeta(name=front_proxy.NAME, namespace=home.namespace)
            named = {key.replace("_", "-"): value for key, value in changes.items()}
            made = await home.objects.apply(ConfigMap(metadata=meta, data={**data, **named}))
            return front_proxy.read(made)

        found = await publish()
        assert found.accepts("front-proxy-client")
        assert not found.accepts("alice")
        with pytest.raises(Refused, match="must contain x-remote-user"):
            await publish(requestheader_username_headers='["X-Other"]')
        with pytest.raises(Refused, match="aggregation is off"):
            await publish(requestheader_client_ca_file="")


@pytest.mark.parametrize(
    "headers", [(), (("x-remote-user", ""),), (*ALICE, ("x-remote-user", "b"))]
)
def test_the_front_proxy_names_exactly_one_user(headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Unauthorized):
        user_of_headers(headers)


def test_the_front_proxy_may_say_more_about_a_user() -> None:
    more = (("x-remote-uid", "7"), ("x-remote-extra-scopes%2fone", "a"))
    found = user_of_headers((*ALICE, *more))
    assert (found.uid, dict(found.extra)) == ("7", {"scopes/one": ("a",)})
