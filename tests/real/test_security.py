"""What a caller with bad intentions gets: nothing that is not theirs, and no secret anywhere.

What is wrong with a token or a header in general is in ``test_bad_input``; who may read what
over REST is in ``test_access``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml
from exporter_fake import running_fakes
from google.protobuf.duration_pb2 import Duration
from jumpstarter_protocol import client_pb2

from bullpen.cli.options import Exit
from bullpen.datadir import keys
from support.grpc_caller import Caller, calling, frame
from support.lab_helpers import Lab, Refusal
from support.real_service import eventually, running_service

pytestmark = pytest.mark.real

POOLS = "/apis/virtualtarget.jumpstarter.dev/v1alpha1/namespaces/default"
OPEN_TO_ALL = {"bullpen.json", "endpoints.json", "lock", "state.db.lock", "ca.crt", "server.crt"}
"""Files of the data directory without anything secret in them."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_service(tmp_path_factory.mktemp("security"), "-v") as service:
        made = Lab(service)
        service.kubectl("create", "namespace", "elsewhere")
        for name in ("alice", "mallory"):
            made.client(name)
        made.client("mallory", namespace="elsewhere")
        made.exporter("board", {"board": "b"})
        made.exporter("other", {"board": "o"})
        yield made


def config(lab: Lab, name: str) -> Path:
    return lab.service.home / f"{name}.yaml"


def token(lab: Lab, name: str) -> str:
    return str(yaml.safe_load(config(lab, name).read_text())["token"])


@contextlib.asynccontextmanager
async def leased(lab: Lab) -> AsyncIterator[tuple[Caller, str]]:
    """Alice, and the name of a lease she holds on an exporter that serves."""
    async with (
        running_fakes(config(lab, "exporter-default-board")),
        calling(config(lab, "client-default-alice")) as alice,
    ):
        name = await alice.create_lease("board=b")
        await alice.acquired(name)
        try:
            yield alice, name
        finally:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await alice.delete_lease(name)


async def refused(call: Any) -> str:
    """What a call is told that must not work."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    text = str(error.value.details())
    assert "internal error" not in text
    return text


async def test_another_clients_lease_is_neither_changed_nor_used(lab: Lab) -> None:
    async with (
        leased(lab) as (alice, name),
        calling(config(lab, "client-default-mallory")) as mallory,
    ):
        path = f"{mallory.parent}/leases/{name}"
        longer = client_pb2.Lease(name=path, duration=Duration(seconds=9000))
        stolen = client_pb2.Lease(name=path, client=f"{mallory.parent}/clients/mallory")
        for call in (
            mallory.client("UpdateLease", lease=longer),
            mallory.client("UpdateLease", lease=stolen),
            mallory.client("DeleteLease", name=path),
            mallory.controller("ReleaseLease", name=name),
            mallory.dial(name),
        ):
            assert "permission denied" in (await refused(call)).lower()
        found = lab.get("leases", name)
        assert found["spec"]["clientRef"]["name"] == "alice"
        assert found["status"]["ended"] is False
        assert (await alice.dial(name)).router_token


@pytest.mark.parametrize("who", ["client-elsewhere-mallory", "exporter-default-other"])
async def test_who_is_from_elsewhere_or_something_else_gets_nowhere(lab: Lab, who: str) -> None:
    async with leased(lab) as (_, name):
        kind = "Client" if who.startswith("client") else "Exporter"
        async with calling(config(lab, who), kind) as mallory:
            path = f"namespaces/default/leases/{name}"
            for method, fields in (
                ("GetLease", {"name": path}),
                ("DeleteLease", {"name": path}),
                (
                    "UpdateLease",
                    {"lease": client_pb2.Lease(name=path, duration=Duration(seconds=9))},
                ),
                ("ListLeases", {"parent": "namespaces/default"}),
                ("ListExporters", {"parent": "namespaces/default"}),
            ):
                assert await refused(mallory.client(method, **fields)), method
            assert await refused(mallory.dial(name))
            assert await refused(anext(aiter(mallory.stream("Listen", lease_name=name))))


async def first_word(caller: Caller, call: Any) -> bytes:
    async with caller.tunnel(call) as stream:
        answer = await stream.read()
        assert answer is not grpc.aio.EOF
        return bytes(answer.payload)


async def pairs(caller: Caller, call: Any) -> bool:
    """Whether somebody answers at the other end of this token."""
    async with caller.tunnel(call) as stream:
        try:
            await stream.write(frame(b"hello"))
            return await stream.read() is not grpc.aio.EOF
        except grpc.aio.AioRpcError:
            return False


async def test_a_router_token_pairs_once(lab: Lab) -> None:
    async with leased(lab) as (alice, name):
        call = await alice.dial(name)
        assert (await first_word(alice, call)).startswith(b"board ")
        assert not await pairs(alice, call)


async def test_a_router_token_dies_with_its_lease(lab: Lab) -> None:
    """Stolen before, used after."""
    async with leased(lab) as (alice, name):
        call = await alice.dial(name)
        await alice.delete_lease(name)
        eventually(lambda: lab.get("leases", name)["status"]["ended"], what="the end of the lease")
        assert not await pairs(alice, call)


async def test_a_router_token_is_no_identity_and_an_identity_no_router_token(lab: Lab) -> None:
    async with leased(lab) as (alice, name):
        call = await alice.dial(name)
        own = alice.headers
        alice.headers = (("authorization", f"Bearer {call.router_token}"), *own[1:])
        assert await refused(alice.client("ListLeases", parent=alice.parent))
        assert rest(lab, call.router_token) == 401
        alice.headers = own
        call.router_token = token(lab, "client-default-alice")
        assert not await pairs(alice, call)


def rest(lab: Lab, bearer: str) -> int:
    """The status of a list over REST with this token."""
    endpoints = lab.service.endpoints
    request = urllib.request.Request(
        f"{endpoints['apiserver']}/api/v1/secrets", headers={"Authorization": f"Bearer {bearer}"}
    )
    context = ssl.create_default_context(cafile=endpoints["ca"])
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)


def part(content: object) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(lab: Lab) -> dict[str, str]:
    """Tokens with the right words and the wrong proof."""
    head, body, signature = token(lab, "client-default-alice").split(".")
    key = keys.signing_keys(lab.service.data / "auth" / "signing-keys.json")[0]
    public = key.as_pem(private=False)

    def confused(secret: bytes, header: dict[str, str]) -> str:
        signed = f"{part(header)}.{body}"
        return f"{signed}.{part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"

    header = json.loads(base64.urlsafe_b64decode(head + "=="))
    stranger = part({**header, "jwk": key.as_dict(private=False)})
    return {
        "alg none": f"{part({'alg': 'none'})}.{body}.",
        "alg None with the signature": f"{part({**header, 'alg': 'None'})}.{body}.{signature}",
        "the public key as a secret": confused(public, {**header, "alg": "HS256"}),
        "the public key without its end": confused(public.strip(), {**header, "alg": "HS256"}),
        "an empty secret": confused(b"", {**header, "alg": "HS256"}),
        "a key it brings along": f"{stranger}.{body}.{signature}",
        "another key's name": f"{part({**header, 'kid': '../../dev/null'})}.{body}.{signature}",
        "no signature": f"{head}.{body}.",
    }


async def test_no_trick_with_the_algorithm_makes_a_token(lab: Lab) -> None:
    async with calling(config(lab, "client-default-alice")) as alice:
        own = alice.headers
        assert await alice.client("ListLeases", parent=alice.parent)
        for name, bearer in forged(lab).items():
            alice.headers = (("authorization", f"Bearer {bearer}"), *own[1:])
            text = await refused(alice.client("ListLeases", parent=alice.parent))
            assert "is not valid here" in text, (name, text)
            assert rest(lab, bearer) == 401, name


async def test_a_token_ends_with_its_client_and_does_not_serve_the_next_of_that_name(
    lab: Lab,
) -> None:
    old = lab.client("leaver")
    async with calling(old) as leaver:
        assert await leaver.client("ListLeases", parent=leaver.parent) is not None
        lab.delete("clients", "leaver")
        assert await refused(leaver.client("ListLeases", parent=leaver.parent))
        lab.create("clients", "leaver")
        lab.token("clients", "leaver")
        assert await refused(leaver.client("ListLeases", parent=leaver.parent))


NAMES = ("../../etc/passwd", "..", ".", "a/../b", "/etc/passwd", "%2e%2e", "a\x00b", "~root", "-rf")


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_its_directory(lab: Lab, name: str) -> None:
    for plural in ("exporters", "clients", "leases"):
        with pytest.raises(Refusal) as refusal:
            lab.create(plural, name, spec={})
        assert refusal.value.status == 422, plural
    pool = {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "kind": "ExporterSet",
        "metadata": {"name": name},
        "spec": {"virtualTargetClassName": "x", "selector": {"matchLabels": {"a": "b"}}},
    }
    with pytest.raises(Refusal) as refusal:
        lab.request("POST", f"{POOLS}/exportersets", pool)
    assert refusal.value.status == 422
    if "\x00" not in name and not name.startswith("-"):
        done = lab.service.bullpen("logs", name, check=False)
        assert done.returncode in (Exit.NOT_FOUND, Exit.INVALID), done.stderr
        assert "root:" not in done.stdout


@pytest.mark.parametrize(
    "parameters",
    [
        {"firmware": {"path": "../../etc/shadow"}},
        {"firmware": {"path": "etc/shadow"}},
        {"disks": [{"name": "../../x", "size": "1Mi"}]},
        {"disks": [{"name": "/etc/passwd", "size": "1Mi"}]},
        {"disks": [{"name": "a,file=/etc/passwd", "size": "1Mi"}]},
    ],
    ids=["up", "relative", "a disk up", "a disk elsewhere", "a disk with an option"],
)
def test_no_path_of_a_target_leads_out(lab: Lab, parameters: dict[str, Any]) -> None:
    """Said on the pool, and nothing is started."""
    name = f"paths-{abs(hash(json.dumps(parameters))) % 10_000_000}"
    common = {"apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1", "metadata": {"name": name}}
    of_class = {
        "provisioner": "qemu.jumpstarter.dev",
        "parameters": {"arch": "aarch64", **parameters},
    }
    of_set = {
        "virtualTargetClassName": name,
        "minAvailableReplicas": 1,
        "maxReplicas": 1,
        "selector": {"matchLabels": {"p": name}},
        "template": {"metadata": {"labels": {"p": name}}, "spec": {"drivers": []}},
    }
    lab.request(
        "POST",
        f"{POOLS}/virtualtargetclasses",
        {**common, "kind": "VirtualTargetClass", "spec": of_class},
    )
    lab.request("POST", f"{POOLS}/exportersets", {**common, "kind": "ExporterSet", "spec": of_set})

    def said() -> bool:
        status = lab.request("GET", f"{POOLS}/exportersets/{name}").get("status", {})
        field = next(iter(parameters))
        return any(field in c.get("message", "") for c in status.get("conditions", []))

    eventually(said, what="the condition that names the field")
    assert not list((lab.service.data / "instances").glob(f"*{name}*"))


def secrets_of(lab: Lab) -> dict[str, str]:
    """Everything that would let somebody in."""
    data = lab.service.data
    found = {
        f"{name} of tokens.json": value
        for name, value in json.loads((data / "auth" / "tokens.json").read_text()).items()
    }
    for secret in lab.request("GET", "/api/v1/secrets")["items"]:
        for key, value in (secret.get("data") or {}).items():
            if key == "token":
                found[f"{secret['metadata']['name']}"] = base64.b64decode(value).decode()
    for entry in json.loads((data / "auth" / "signing-keys.json").read_text())["keys"]:
        found["the private part of the signing key"] = entry["d"]
    return found


def everything_said(lab: Lab) -> dict[str, str]:
    """Where people look: logs, objects without the Secrets, command lines."""
    service = lab.service
    assert service.process is not None
    said = {"the log": service.log.read_text()}
    for path in service.data.glob("instances/**/log*"):
        said[str(path)] = path.read_text(errors="replace")
    for what in (
        "/api/v1/events",
        "/apis/jumpstarter.dev/v1alpha1/exporters",
        "/api/v1/configmaps",
    ):
        said[what] = json.dumps(lab.request("GET", what))
    for plural in ("clients", "leases"):
        said[plural] = json.dumps(lab.request("GET", f"/apis/jumpstarter.dev/v1alpha1/{plural}"))
    said["pools"] = json.dumps(lab.request("GET", f"{POOLS}/exportersets"))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            said[f"command line of {process.pid}"] = " ".join(process.cmdline())
    return said


def test_no_secret_is_said_anywhere(lab: Lab) -> None:
    """With a pool that runs, so that there is something to say."""
    common = {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "metadata": {"name": "quiet"},
    }
    labels = {"p": "quiet"}
    of_set = {
        "virtualTargetClassName": "quiet",
        "minAvailableReplicas": 1,
        "maxReplicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"drivers": []}},
    }
    of_class = {"provisioner": "mock.jumpstarter.dev"}
    lab.request(
        "POST",
        f"{POOLS}/virtualtargetclasses",
        {**common, "kind": "VirtualTargetClass", "spec": of_class},
    )
    lab.request("POST", f"{POOLS}/exportersets", {**common, "kind": "ExporterSet", "spec": of_set})

    def available() -> bool:
        status = lab.request("GET", f"{POOLS}/exportersets/quiet").get("status", {})
        return bool(status.get("availableReplicas"))

    eventually(available, seconds=120, what="a target")
    secrets, said = secrets_of(lab), everything_said(lab)
    assert len(secrets) > 6
    assert any("instances" in where for where in said), "an exporter's log is among it"
    leaks = [
        f"{name} in {where}"
        for name, secret in secrets.items()
        for where, text in said.items()
        if secret in text
    ]
    assert not leaks


def test_nobody_else_can_read_the_data_directory(lab: Lab) -> None:
    root = lab.service.data
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    readable = [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and path.stat().st_mode & 0o077
        and path.name not in OPEN_TO_ALL
    ]
    assert not readable
