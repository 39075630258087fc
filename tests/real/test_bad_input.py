"""What people and programs get wrong, and what they are told, with the real programs."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from jumpstarter_protocol import client_pb2

from bullpen.datadir import keys
from bullpen.identity.subjects import Role, Subject
from bullpen.identity.tokens import Signer
from support.grpc_caller import calling
from support.lab_helpers import Lab, at_once
from support.real_service import Service

pytestmark = pytest.mark.real

SAID = "Error: grpc controller responded: "


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    lab = Lab(service)
    service.kubectl("create", "namespace", "elsewhere")
    lab.client("alice")
    lab.client("alice", namespace="elsewhere")
    lab.exporter("board", {"board": "b"})
    return lab


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.service.home / "client-default-alice.yaml"


def signer_of(lab: Lab) -> Signer:
    return Signer(keys.signing_keys(lab.service.data / "auth" / "signing-keys.json"))


def minted(lab: Lab, signer: Signer, *, age: timedelta = timedelta(0)) -> str:
    """A token for alice as she is now, made ``age`` ago by whoever holds the signer's key."""
    uid = lab.get("clients", "alice")["metadata"]["uid"]
    subject = Subject(role=Role.CLIENT, namespace="default", name="alice", uid=uid)
    now = datetime.now(UTC) - age
    return signer.issue(subject, token_id=secrets.token_hex(8), now=now)


def token_of(path: Path) -> str:
    return str(yaml.safe_load(path.read_text())["token"])


def with_token(config: Path, token: str, stem: str, **metadata: str) -> Path:
    content = yaml.safe_load(config.read_text())
    content["token"] = token
    content["metadata"].update(metadata)
    path = config.with_name(f"{stem}.yaml")
    path.write_text(yaml.safe_dump(content))
    return path


def test_tokens_that_do_not_count_are_refused_in_a_sentence(lab: Lab, alice: Path) -> None:
    home = lab.service.home
    stranger = Signer(keys.signing_keys(home / "stranger-keys.json"))
    elsewhere = token_of(home / "client-elsewhere-alice.yaml")
    board = token_of(home / "exporter-default-board.yaml")
    own = token_of(alice)
    damaged = own[:-6] + ("A" * 6 if own[-6:] != "A" * 6 else "B" * 6)
    cases = {
        "run out": (minted(lab, signer_of(lab), age=timedelta(days=800)), "has run out"),
        "forged": (minted(lab, stranger), "is not valid here"),
        "damaged": (damaged, "is not valid here"),
        "of another namespace": (elsewhere, "is not for client alice"),
        "of an exporter": (board, "is not for client alice"),
        "true but not the current one": (minted(lab, signer_of(lab)), "was revoked"),
    }
    configs = {
        name: with_token(alice, token, f"bad-{number}")
        for number, (name, (token, _)) in enumerate(cases.items())
    }
    answers = at_once(
        *(
            lambda config=config: lab.jmp(config, "get", "leases", check=False)
            for config in configs.values()
        )
    )
    for (name, (_, text)), done in zip(cases.items(), answers, strict=True):
        assert done.returncode, name
        assert done.stderr.startswith(SAID), (name, done.stderr)
        assert text in done.stderr, (name, done.stderr)
        assert len(done.stderr.splitlines()) == 1, (name, done.stderr)


def test_a_token_opens_no_other_namespace(lab: Lab, alice: Path) -> None:
    """Not by naming the other namespace, and not by naming it in the request only."""
    moved = with_token(alice, token_of(alice), "moved", namespace="elsewhere")
    done = lab.jmp(moved, "get", "leases", check=False)
    assert done.stderr == f"{SAID}the token is not for client alice\n"


async def test_a_request_for_another_namespace_is_refused(lab: Lab, alice: Path) -> None:
    async with calling(alice) as caller:
        for method, fields in (
            ("ListLeases", {"parent": "namespaces/elsewhere"}),
            ("GetExporter", {"name": "namespaces/elsewhere/exporters/board"}),
            ("DeleteLease", {"name": "namespaces/elsewhere/leases/x"}),
            ("RotateToken", {"parent": "namespaces/elsewhere"}),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await caller.client(method, **fields)
            assert "does not belong to namespace elsewhere" in str(refused.value.details())


@pytest.mark.parametrize("kind", ["a client", "nobody"])
def test_an_exporter_with_a_wrong_token_stops_and_says_why(
    lab: Lab, alice: Path, kind: str
) -> None:
    token = token_of(alice) if kind == "a client" else "not.a.token"
    config = with_token(lab.service.home / "exporter-default-board.yaml", token, "wrong-exporter")
    done = lab.service.jmp("run", "--exporter-config", str(config), timeout=40)
    said = "is not for exporter board" if kind == "a client" else "is not valid here"
    assert said in done.stderr
    assert "Exiting" in done.stderr
    assert "conditions" not in lab.get("exporters", "board")["status"], "nobody registered"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({"authorization": None}, "UNAUTHENTICATED", id="no token"),
        pytest.param({"authorization": "Basic x"}, "UNKNOWN", id="not a bearer token"),
        pytest.param({"jumpstarter-kind": "client"}, "UNKNOWN", id="a kind in lower case"),
        pytest.param({"jumpstarter-kind": "Exporter"}, "UNKNOWN", id="the wrong kind"),
        pytest.param({"jumpstarter-name": None}, "UNKNOWN", id="no name"),
        pytest.param({"jumpstarter-namespace": None}, "UNKNOWN", id="no namespace"),
    ],
)
async def test_headers_that_do_not_fit_are_refused(
    lab: Lab, alice: Path, headers: dict[str, str | None], code: str
) -> None:
    async with calling(alice) as caller:
        chosen = {**dict(caller.headers), **headers}
        caller.headers = tuple((k, v) for k, v in chosen.items() if v is not None)  # type: ignore[assignment]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.client("ListLeases", parent=caller.parent)
    assert refused.value.code().name == code


CREATE = ("create", "lease", "--duration", "5m")

MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "a selector of words": ((*CREATE, "-l", "a b c"), "unable to parse label selector 'a b c'"),
    "an open bracket": ((*CREATE, "-l", "a in ("), "closed by ')'"),
    "two values at once": ((*CREATE, "-l", "a=b,a=c"), "two values of 'a' at once"),
    "an order": ((*CREATE, "-l", "a>1"), "is not supported in a lease's selector"),
    "a filter of nothing": (("get", "exporters", "-l", "=x"), "unable to parse label selector"),
    "no time": (("create", "lease", "-l", "board=b", "--duration", "0s"), "above zero"),
    "negative time": (("create", "lease", "-l", "board=b", "--duration", "-5m"), "above zero"),
    "a century": (("create", "lease", "-l", "board=b", "--duration", "876000h"), "3650 days"),
    "a million years": (
        ("create", "lease", "-l", "board=b", "--duration", "P365000000D"),
        "3650 days",
    ),
    "a lease id of capitals": (
        (*CREATE, "-l", "board=b", "--lease-id", "Not_A_Name"),
        "lease id 'Not_A_Name' must be a lowercase RFC 1123 subdomain",
    ),
    "an exporter of that name": (
        ("shell", "-n", "No Such", "--", "true"),
        "there is no exporter No Such",
    ),
    "somebody else's lease": (("delete", "leases", "nothing-of-mine"), "there is no lease"),
}


def test_mistakes_are_answered_in_a_sentence(lab: Lab, alice: Path) -> None:
    """Two at a time: each is a start of ``jmp``, and nothing here depends on the others."""
    before = len(lab.get("leases")["items"])

    def said(arguments: tuple[str, ...]) -> Any:
        return lab.jmp(alice, *arguments, check=False)

    names = list(MISTAKES)
    answers: list[Any] = []
    for pair in (names[at : at + 2] for at in range(0, len(names), 2)):
        answers += at_once(*(lambda name=name: said(MISTAKES[name][0]) for name in pair))
    for name, done in zip(names, answers, strict=True):
        assert done.returncode, name
        assert MISTAKES[name][1] in done.stderr, (name, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, name
        assert len(done.stderr.splitlines()) == 1, (name, done.stderr)
    refused = [lease for lease in lab.get("leases")["items"] if not lease["status"]["ended"]]
    assert not refused, "a mistake left a lease behind"
    assert len(lab.get("leases")["items"]) <= before + 1, "only the unknown exporter made one"


@pytest.mark.parametrize("kind", ["client", "exporter"])
def test_names_that_are_no_dns_labels_are_refused_by_admin(service: Service, kind: str) -> None:
    extra = ["-l", "a=b"] if kind == "exporter" else []
    done = service.jmp("admin", "create", kind, "Bad_Name", *extra, check=False, input="n\n")
    assert done.returncode
    assert "Error from server (Invalid)" in done.stderr
    assert "must be a lowercase RFC 1123 subdomain" in done.stderr


def lease_of(**fields: Any) -> Any:
    return client_pb2.Lease(**fields)


async def test_times_outside_the_calendar_are_refused(lab: Lab, alice: Path) -> None:
    """No error of ours, whatever a program puts into the numbers."""
    huge = 315_576_000_000
    async with calling(alice) as caller:
        for fields in (
            {"duration": {"seconds": huge}},
            {"duration": {"seconds": -huge}},
            {"duration": {"seconds": 60}, "begin_time": {"seconds": 253_402_300_799}},
            {"duration": {"seconds": 60}, "end_time": {"seconds": -62_135_596_800}},
            {"begin_time": {"seconds": 1}, "end_time": {"seconds": 61}},
            {"duration": {"seconds": 60, "nanos": 2**31 - 1}, "end_time": {"seconds": 10**18}},
            {},
        ):
            lease = lease_of(selector="board=b", **fields)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await caller.client("CreateLease", parent=caller.parent, lease=lease)
            assert refused.value.code() is grpc.StatusCode.UNKNOWN, refused.value.details()
            assert "internal error" not in str(refused.value.details())
