"""The dashboard of a cluster: a process with no rights but to look, and people with their own.

Our own API server stands in for the cluster's; the roles are those that the chart installs. A
real cluster has authenticators, authorizers and admission that this one lacks.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from playwright.sync_api import Browser, expect

from support.browser import WAIT_MS, Person, chromium
from support.cluster_lab import ClusterLab, Process, stand_in
from support.oidc_server import Provider, running_provider
from support.real_service import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
ECHO = {
    "power": {"type": "jumpstarter_driver_power.driver.MockPower"},
    "serial": {
        "type": "jumpstarter_driver_pyserial.driver.PySerial",
        "config": {"url": "loop://"},
    },
}
LOOK = ("list", "watch")


@dataclass
class DashboardLab:
    """A cluster with a controller, a router, a dashboard, a board and a client."""

    cluster: ClusterLab
    dashboard: Process
    address: str
    alice: str
    """The Jumpstarter token of the client that exists."""

    issuer: Provider

    def account(self, name: str, *rules: dict[str, Any]) -> str:
        """The token of a service account that may do this in the namespace, and nothing else."""
        meta = {"name": name, "namespace": "default"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        group = "rbac.authorization.k8s.io/v1"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        documents = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {"apiVersion": group, "kind": "Role", "metadata": meta, "rules": [*rules]},
            {
                "apiVersion": group,
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": role,
                "subjects": [subject],
            },
        ]
        self.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
        return self.cluster.kubectl("create", "token", name).stdout.strip()


def rule(group: str, resources: str, *verbs: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}


SEES = rule("jumpstarter.dev", "exporters leases", *LOOK)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, issuer: Provider) -> Iterator[DashboardLab]:
    directory = tmp_path_factory.mktemp("cluster")
    settings = directory / "config.yaml"
    settings.write_text(yaml.safe_dump({"oidc": [{"issuer": issuer.address}]}))
    with stand_in(directory / "control-plane") as kubeconfig:
        cluster = ClusterLab(directory / "lab", kubeconfig)
        try:
            printed = cluster.bullpen("manifests", "-n", "default", "-o", "json").stdout
            rights = [item for item in json.loads(printed)["items"] if item["kind"] in RIGHTS]
            # The stand-in has no aggregation, and so nobody that reads for it.
            rights = [item for item in rights if "-proxy" not in item["metadata"]["name"]]
            cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(rights))
            cluster.accounts = True
            cluster.controller("controller", "--config", str(settings))
            cluster.leader()
            router = cluster.router("router-1")
            eventually(lambda: router.ready, what="the router")
            client = cluster.create_client("alice")
            board = cluster.create_exporter("board", {"board": "x"}, export=ECHO)
            authority = directory / "ca.crt"
            path = r"jsonpath={.data.ca\.crt}"
            authority.write_text(
                cluster.kubectl(
                    "get", "configmap", "jumpstarter-service-ca-cert", "-o", path
                ).stdout
            )
            dashboard = cluster.launch(
                "dashboard", "dashboard", "serve", "--port", "0",
                "--endpoint", f"127.0.0.1:{cluster.port}", "--service-ca", str(authority),
                "--watch-namespace", "default", "--config", str(settings),
            )  # fmt: skip
            eventually(lambda: dashboard.ready, seconds=30, what="the dashboard")
            address = re.search(r"https://\S+/dashboard/", dashboard.role)
            assert address is not None, dashboard.role
            with cluster.exporter(board):
                token = str(yaml.safe_load(client.read_text())["token"])
                yield DashboardLab(cluster, dashboard, address[0], token, issuer)
            assert dashboard.end() == 0, dashboard.log.read_text()
        finally:
            cluster.end_all()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """For one test: while Playwright runs, this thread cannot run another event loop."""
    with chromium() as running:
        yield running


class Page:
    """A signed-in person, without a browser."""

    def __init__(self, lab: DashboardLab, token: str) -> None:
        self._address = lab.address
        self._headers = {"origin": lab.address.removesuffix("/dashboard/")}
        trust_all = ssl._create_unverified_context()
        self._open = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust_all))
        status, self.session = self.call("POST", "session", authorization=f"Bearer {token}")
        assert status == 201, self.session
        self._headers["x-bullpen-csrf"] = self.session["csrf"]

    def call(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        sent = {**self._headers, "content-type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._address}api/{path}", data=data, method=method, headers=sent
        )
        try:
            with self._open.open(request, timeout=60) as answer:
                cookie = answer.headers.get("set-cookie", "").partition(";")[0]
                if cookie:
                    self._headers["cookie"] = cookie
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def first_event(self, path: str, wanted: str) -> bool:
        """Whether a stream says this before it ends."""
        request = urllib.request.Request(f"{self._address}api/{path}", headers=self._headers)
        with self._open.open(request, timeout=60) as answer:
            return any(wanted in line.decode() for line in answer)

    def sees(self) -> int:
        """The number of targets that match a selector."""
        return int(self.call("GET", "matches?namespace=default&selector=board%3Dx")[1]["total"])


def test_a_client_leases_a_board_and_types_at_its_console_in_the_browser(
    lab: DashboardLab, browser: Browser, tmp_path: Path
) -> None:
    person = Person(browser)
    try:
        person.sign_in_at(lab.address, lab.alice)
        page = person.page
        person.visit("Targets")
        page.get_by_text("board", exact=True).first.wait_for()
        person.visit("Leases")
        page.get_by_label("Labels").fill("board=x")
        page.get_by_text("1 target matches").wait_for()
        page.screenshot(path=tmp_path / "lease.png")
        page.get_by_role("button", name="Lease and open the console").click()
        page.get_by_text("Connected").wait_for(timeout=WAIT_MS)
        page.get_by_role("textbox", name="Terminal input").focus()
        page.keyboard.type("through the real router")
        terminal = page.locator(".xterm-accessibility-tree")
        expect(terminal).to_contain_text("through the real router", timeout=WAIT_MS)
        page.screenshot(path=tmp_path / "console.png")
        page.get_by_role("button", name="Release").click()
        page.get_by_role("heading", name="Overview").wait_for()
        person.visit("Pools")
        page.get_by_text("You may not see pools").wait_for()
        assert not person.errors
    finally:
        person.close()


def test_people_with_a_role_in_one_namespace_have_its_events(
    lab: DashboardLab, browser: Browser, tmp_path: Path
) -> None:
    token = lab.account("reader", SEES, rule("", "events", *LOOK))
    person = Person(browser)
    try:
        person.sign_in_at(lab.address, token)
        person.visit("Targets")
        person.page.get_by_role("link", name="board", exact=True).wait_for()
        person.visit("Events")
        person.page.get_by_text("Lease/").first.wait_for()
        person.page.screenshot(path=tmp_path / "events.png")
        # The browser reports the first request, for the events of all namespaces.
        assert all("403" in error for error in person.errors)
    finally:
        person.close()


def test_rbac_of_the_cluster_decides_what_people_see_and_change(lab: DashboardLab) -> None:
    alice = Page(lab, lab.alice)
    wanted = {"namespace": "default", "client": "alice", "selector": "board=x"}
    status, made = alice.call("POST", "leases", wanted)
    assert status == 201, made
    lease = f"leases/default/{made['metadata']['name']}"

    stranger = Page(lab, lab.account("stranger"))
    assert (alice.sees(), stranger.sees()) == (1, 0)
    assert stranger.call("DELETE", lease)[0] == 404

    viewer = Page(lab, lab.account("viewer", SEES))
    assert viewer.sees() == 1
    status, refusal = viewer.call("DELETE", lease)
    assert status == 403
    assert 'cannot patch resource "leases"' in refusal["message"]
    # A lease for a client of others is an object that one must be allowed to create.
    assert viewer.call("POST", "leases", wanted)[0] == 403
    assert viewer.call("GET", f"consoles/{lease.removeprefix('leases/')}")[0] == 403

    changes = rule("jumpstarter.dev", "leases", "get", "create", "patch")
    operator = Page(lab, lab.account("operator", SEES, changes))
    assert operator.call("DELETE", lease)[0] == 200
    path = lease.removeprefix("leases/default/")
    found = lab.cluster.get("leases.jumpstarter.dev", path)
    assert found["spec"]["release"] is True


def test_a_person_who_may_read_the_token_of_a_client_may_use_its_console(
    lab: DashboardLab,
) -> None:
    alice = Page(lab, lab.alice)
    wanted = {"namespace": "default", "client": "alice", "selector": "board=x"}
    status, made = alice.call("POST", "leases", wanted)
    assert status == 201, made
    name = made["metadata"]["name"]
    secret = rule("", "secrets", "get") | {"resourceNames": ["alice-client"]}
    keeper = Page(lab, lab.account("keeper", SEES, secret))
    assert keeper.session["clients"] == [{"ns": "default", "name": "alice"}]
    assert keeper.session["own"] == []
    assert keeper.first_event(f"consoles/default/{name}", "open")
    assert alice.call("DELETE", f"leases/default/{name}")[0] == 200


def test_a_client_extends_a_lease_and_claims_through_the_controller(lab: DashboardLab) -> None:
    group = "device.jumpstarter.dev/v1alpha1"
    spec = {"selectors": [{"labels": {"matchLabels": {"board": "x"}}}]}
    board = {"apiVersion": group, "kind": "DeviceClass", "metadata": {"name": "board"}}
    lab.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump({**board, "spec": spec}))
    alice = Page(lab, lab.alice)
    eventually(lambda: alice.call("GET", "classes")[1] == {"classes": ["board"]}, what="the class")
    wanted = {
        "namespace": "default",
        "client": "alice",
        "name": "bench",
        "requests": [{"name": "dut", "class": "board"}],
    }

    def preview() -> dict[str, Any]:
        status, found = alice.call("POST", "claims/preview", wanted)
        assert status == 200, found
        return found

    eventually(lambda: preview()["verdict"] == "Satisfied", seconds=30, what="a free board")
    assert preview()["members"][0]["device"] == "board"
    status, made = alice.call("POST", "claims", wanted)
    assert status == 201, made
    status, refusal = alice.call("POST", "claims", wanted)
    assert (status, refusal["reason"]) == (409, "AlreadyExists")
    assert alice.call("PATCH", "claims/default/bench", {"duration": "2h"})[0] == 200
    found: Any = lab.cluster.get("deviceclaim", "bench")["spec"]
    assert (found["clientRef"], found["duration"]) == ({"name": "alice"}, "2h0m0s")
    assert alice.call("DELETE", "claims/default/bench")[0] == 200

    lease = {"namespace": "default", "client": "alice", "selector": "board=x"}
    status, made = alice.call("POST", "leases", lease)
    assert status == 201, made
    path = f"leases/default/{made['metadata']['name']}"
    assert alice.call("PATCH", path, {"duration": "3h"})[0] == 200

    def refused() -> bool:
        status, refusal = alice.call("PATCH", path, {"client": "nobody"})
        return status == 400 and "there is no client nobody" in refusal["message"]

    # Before it has a target, a lease cannot be transferred at all.
    eventually(refused, seconds=30, what="a lease with a target")
    assert alice.call("DELETE", path)[0] == 200


def test_a_user_of_an_issuer_is_the_client_that_names_them(lab: DashboardLab) -> None:
    client = {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Client",
        "metadata": {"name": "al", "namespace": "default"},
        "spec": {"username": "oidc:alice"},
    }
    lab.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(client))
    eventually(
        lambda: (
            Page(lab, lab.issuer.token("alice")).session["own"] == [{"ns": "default", "name": "al"}]
        ),
        what="the client",
    )
    page = Page(lab, lab.issuer.token("alice"))
    assert page.session["user"] == "oidc:alice"
    wanted = {"namespace": "default", "client": "al", "selector": "board=x"}
    status, made = page.call("POST", "leases", wanted)
    assert status == 201, made
    assert page.call("DELETE", f"leases/default/{made['metadata']['name']}")[0] == 200
    stranger = Page(lab, lab.issuer.token("mallory"))
    assert (stranger.sees(), stranger.session["clients"]) == (0, [])


def test_a_withdrawn_right_and_a_deleted_client_count_soon(lab: DashboardLab) -> None:
    page = Page(lab, lab.account("guest", SEES))
    assert page.sees() == 1
    lab.cluster.kubectl("delete", "rolebinding", "guest")
    eventually(lambda: page.sees() == 0, seconds=30, what="the right being withdrawn")
    config = lab.cluster.create_client("bob")
    bob = Page(lab, str(yaml.safe_load(config.read_text())["token"]))
    assert bob.call("GET", "session")[1]["user"] == "bob"
    lab.cluster.kubectl("delete", "client", "bob")
    eventually(
        lambda: bob.call("GET", "matches?namespace=default")[0] == 401,
        seconds=30,
        what="the end of the session",
    )


def test_a_token_of_a_client_is_not_shown_to_the_api_server(lab: DashboardLab) -> None:
    alice = Page(lab, lab.alice)
    status, refusal = alice.call("GET", "objects/api/v1/events")
    assert status == 403
    assert "does not know the token" in refusal["message"]
    assert alice.call("GET", "session")[0] == 200, "and she is still signed in"
    for path in ("objects/version", "objects/apis/../version", "objects/api/v1/events?watch=1"):
        assert alice.call("GET", path)[0] in (400, 403)


def test_what_the_process_asks_of_the_cluster_is_what_the_chart_allows(lab: DashboardLab) -> None:
    """It runs as its service account: a right that is missing would have failed the other tests."""
    asked = set(lab.dashboard.requests())
    writes = {(verb, what) for verb, what in asked if verb not in ("get", *LOOK)}
    assert {verb for verb, _ in writes} <= {"create"}
    assert {what.partition(".")[0] for _, what in writes} <= {
        "tokenreviews",
        "subjectaccessreviews",
    }
    assert ("list", "secrets") not in asked
