"""The dashboard in a real Chromium: sign-in, every page, a console, two people."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Locator, expect

from support.browser import NARROW, WAIT_MS, WIDE, Person, Relay, chromium
from support.newcomer import BOOT_MS
from support.oidc_server import ForeignProvider, running_foreign_provider
from support.qemu_pools import until
from support.real_service import Service, eventually, free_port_base, running_service
from support.ssh_hosts import apply_hosts, has_sshd, ssh_hosts

pytestmark = pytest.mark.real

POOL = Path(__file__).parents[2] / "examples" / "uboot-pool.yaml"
CLAIM = POOL.with_name("claim.yaml")
PAGES = ("Targets", "Leases", "Queue", "Timeline", "Pools", "Hosts", "Events", "Audit")
GROUP = "jumpstarter.dev/v1alpha1"
CONNECTIONS = 8


@pytest.fixture(scope="module")
def issuer() -> Iterator[ForeignProvider]:
    with running_foreign_provider(free_port_base(), "alice") as running:
        eventually(running.answers, seconds=120, what="the issuer")
        yield running


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, issuer: ForeignProvider) -> Iterator[Service]:
    """A service with the example pool of U-Boot boards, whose users may sign in at an issuer."""
    directory = tmp_path_factory.mktemp("lab")
    trusted = {
        "issuer": issuer.address,
        "usernameClaim": "sub",
        "dashboard": {
            "clientId": "bullpen-dashboard",
            "clientSecretFile": str(directory / "secret"),
        },
    }
    (directory / "secret").write_text("any: this issuer takes each\n")
    settings = directory / "config.yaml"
    settings.write_text(yaml.safe_dump({"oidc": [trusted]}))
    with running_service(directory, "-f", str(POOL), "--config", str(settings)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def person(browser: Browser) -> Iterator[Person]:
    found = Person(browser)
    yield found
    found.close()


def token_of(config: Path) -> str:
    return str(yaml.safe_load(config.read_text())["token"])


def screen(person: Person) -> Locator:
    """The terminal's text, as a screen reader gets it."""
    return person.page.locator(".xterm-accessibility-tree")


def test_a_log_gets_no_link(lab: Service) -> None:
    eventually(lambda: "Press Ctrl-C" in lab.log.read_text(), seconds=120, what="the announcement")
    log = lab.log.read_text()
    assert "bullpen dashboard" in log
    assert "link=" not in log


def test_a_link_is_used_up_and_a_wrong_token_is_refused(lab: Service, person: Person) -> None:
    link = lab.bullpen("dashboard").stdout.strip()
    person.page.goto(link)
    person.page.get_by_role("heading", name="Overview").wait_for()
    person.page.get_by_role("button", name="Sign out").click()
    person.page.get_by_label("Token").wait_for()
    person.page.goto(link)
    person.page.get_by_text("the link was used or has expired").wait_for()
    person.page.get_by_label("Token").fill("guess")
    person.page.get_by_role("button", name="Sign in").click()
    person.page.get_by_text("the token is not valid here").wait_for()


def test_a_user_of_an_issuer_signs_in_there_and_sees_what_rbac_allows(
    lab: Service, person: Person, issuer: ForeignProvider
) -> None:
    lab.kubectl("create", "clusterrolebinding", "alice", "--clusterrole=view", "--user=oidc:alice")
    # The issuer's page wants a style sheet from elsewhere.
    person.page.route(re.compile("cdn"), lambda route: route.abort())
    person.page.goto(lab.endpoints["dashboard"])
    name = issuer.address.removeprefix("http://")
    person.page.get_by_role("link", name=f"Sign in with {name}").click()
    person.page.get_by_role("button", name="Deny").click()
    person.page.get_by_role("alert").get_by_text("refused the sign-in").wait_for()
    person.page.get_by_role("link", name=f"Sign in with {name}").click()
    person.page.get_by_role("button", name="alice").click()
    person.page.get_by_role("heading", name="Overview").wait_for()
    person.page.get_by_text("oidc:alice").wait_for()
    person.visit("Targets")
    person.page.get_by_role("link", name=re.compile(r"uboot-\d+")).first.wait_for(timeout=BOOT_MS)
    person.page.get_by_role("button", name="Sign out").click()
    person.page.get_by_label("Token").wait_for()


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_every_page_loads_without_errors_and_axe_finds_nothing_serious(
    lab: Service, browser: Browser, tmp_path: Path, look: str
) -> None:
    person = Person(browser, size=NARROW if look == "narrow" else None, dark=look == "dark")
    try:
        person.page.goto(lab.endpoints["dashboard"])
        person.page.get_by_label("Token").wait_for()
        assert not person.serious_problems(), "sign-in"
        person.open_link(lab)
        person.page.get_by_text("2 warm").wait_for(timeout=BOOT_MS)
        assert not person.serious_problems(), "Overview"
        person.page.screenshot(path=tmp_path / "overview.png")
        for page in PAGES:
            person.visit(page)
            person.page.wait_for_timeout(500)
            if page == "Hosts":
                machine = person.page.get_by_role("region", name="Machine of the service")
                expect(machine).to_contain_text(re.compile(r"Instances2 of 500"))
            assert not person.serious_problems(), page
            person.page.screenshot(path=tmp_path / f"{page.lower()}.png")
        person.visit("Targets")
        person.page.get_by_role("link", name=re.compile(r"uboot-\d+")).first.click()
        person.page.get_by_role("heading", name="Drivers").wait_for()
        log = person.page.get_by_role("region", name="Log of its exporter")
        expect(log).to_contain_text("Registering exporter")
        assert not person.serious_problems(), "target"
        person.page.screenshot(path=tmp_path / "target.png")
        assert not person.errors
    finally:
        person.close()


def test_two_people_compete_for_one_target(lab: Service, browser: Browser, tmp_path: Path) -> None:
    config = lab.create_exporter("only", {"board": "only"})
    alice, bob = Person(browser), Person(browser)
    try:
        with lab.exporter(config):
            for person, name in ((alice, "alice"), (bob, "bob")):
                person.sign_in(lab, token_of(lab.create_client(name)))
                person.visit("Leases")
                person.page.get_by_label("Labels").fill("board=only")
                person.page.get_by_text("1 target matches").wait_for()
                person.page.get_by_role("button", name="Lease", exact=True).click()
                person.page.get_by_label("Lease", exact=False).first.wait_for()
            mine = alice.page.get_by_role("article").filter(has_text="alice")
            expect(mine).to_contain_text("Active")
            bob.visit("Queue")
            waiting = bob.page.get_by_role("listitem").filter(has_text="bob")
            expect(waiting).to_contain_text("position 1 in the queue")
            waiting.get_by_role("button", name="What is ahead").click()
            expect(waiting).to_contain_text("only alice")
            bob.page.screenshot(path=tmp_path / "queue.png")
            mine.get_by_role("button", name="Release").click()
            bob.visit("Leases")
            his = bob.page.get_by_role("article").filter(has_text="bob")
            expect(his).to_contain_text("Active", timeout=WAIT_MS)
            his.get_by_role("button", name="Extend by 30 min").click()
            expect(his).to_contain_text("59 min")
            his.get_by_role("button", name="Release").click()
            expect(his).to_have_count(0)
            begin = datetime.now().astimezone() + timedelta(minutes=30)
            bob.page.get_by_label("Labels").fill("board=only")
            bob.page.get_by_label("Begin").fill(begin.strftime("%Y-%m-%dT%H:%M"))
            bob.page.get_by_role("button", name="Book", exact=True).click()
            expect(his).to_contain_text("Booked")
            expect(his).to_contain_text(re.compile("begins in (29|30) min"))
            bob.page.screenshot(path=tmp_path / "booked.png")
            lab.kubectl("apply", "-f", "-", input=yaml.safe_dump(booked_lease("only")))
            bob.visit("Timeline")
            target = bob.page.get_by_role("row").filter(has_text="only")
            expect(target.get_by_role("img", name=re.compile("alice.*ended"))).to_have_count(1)
            expect(target.get_by_role("img", name=re.compile("bob.*ended"))).to_have_count(1)
            expect(target.get_by_role("img", name="bob, 20 min, booked")).to_have_count(1)
            of_any = bob.page.get_by_role("row").filter(has_text="Any, booked")
            expect(of_any.get_by_role("img", name="bob, 30 min, booked")).to_have_count(1)
            bob.page.screenshot(path=tmp_path / "timeline.png")
            lab.kubectl("delete", "lease", "later")
            expect(target.get_by_role("img", name=re.compile("booked"))).to_have_count(0)
        assert not alice.errors + bob.errors
    finally:
        alice.close()
        bob.close()


def booked_lease(target: str) -> dict[str, Any]:
    """A lease that begins soon, for one exporter."""
    begin = datetime.now(UTC) + timedelta(minutes=30)
    return {
        "apiVersion": GROUP,
        "kind": "Lease",
        "metadata": {"name": "later"},
        "spec": {
            "clientRef": {"name": "bob"},
            "exporterRef": {"name": target},
            "selector": {},
            "beginTime": begin.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "duration": "20m",
        },
    }


def test_a_claim_says_why_it_waits_and_is_extended_and_released(
    lab: Service, person: Person, tmp_path: Path
) -> None:
    lab.kubectl("apply", "-f", str(CLAIM))
    board = lab.create_exporter("board-1", {"kind": "board", "site": "brno"})
    node = lab.create_exporter("node-1", {"kind": "can-node", "site": "brno"})
    person.sign_in(lab, token_of(lab.data / "clients" / "default.yaml"))
    with lab.exporter(board):
        person.visit("Queue")
        waiting = person.page.get_by_role("listitem").filter(has_text="claim bench")
        expect(waiting).to_contain_text("dut: board; peer: can-node; same site")
        expect(waiting).to_contain_text("too few of them are connected")
        person.page.screenshot(path=tmp_path / "claim-queue.png")
        with lab.exporter(node):
            person.visit("Leases")
            claim = person.page.get_by_role("article", name="Claim bench")
            expect(claim).to_contain_text("Active", timeout=BOOT_MS)
            for request, target in (("dut", "board-1"), ("peer", "node-1")):
                member = claim.get_by_role("listitem").filter(has_text=request)
                member.get_by_role("link", name=target, exact=True).wait_for()
                member.get_by_role("link", name=f"Console of {target}").wait_for()
            claims_only = person.page.get_by_role("article").filter(has_text="board-1")
            expect(claims_only).to_have_count(1)
            claim.get_by_role("button", name="Extend by 30 min").click()
            expect(claim).to_contain_text("for 1 h 30 min")
            for look in (None, NARROW):
                if look is not None:
                    person.page.set_viewport_size(look)  # type: ignore[arg-type]
                assert not person.serious_problems()
                person.page.screenshot(path=tmp_path / f"claim-{look is None}.png")
            claim.get_by_role("button", name="Release").click()
            expect(claim).to_have_count(0)
            claimed_with_the_form(person, tmp_path)
    assert not person.errors


def claimed_with_the_form(person: Person, pictures: Path) -> None:
    """The form says what a claim would get while it is filled in, and makes it."""
    page = person.page
    page.get_by_role("button", name="Claim several targets").click()
    form = page.get_by_role("region", name="New claim")
    first = form.get_by_role("group", name="Request 1")
    first.get_by_label("Class").fill("board")
    expect(form).to_contain_text("dut gets board-1", timeout=BOOT_MS)
    first.get_by_label("Count").fill("2")
    expect(form).to_contain_text("Nothing in this lab can serve it")
    assert not person.serious_problems()
    page.screenshot(path=pictures / "claim-form-narrow.png", full_page=True)
    first.get_by_label("Count").fill("1")
    form.get_by_role("button", name="Add a request").click()
    second = form.get_by_role("group", name="Request 2")
    second.get_by_label("Name").fill("peer")
    second.get_by_label("Class").fill("can-node")
    second.get_by_label("Labels").fill("site=brno")
    form.get_by_label("All with the same").fill("site")
    form.get_by_label("Name of the claim").fill("formed")
    expect(form).to_contain_text("peer gets node-1", timeout=BOOT_MS)
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    page.screenshot(path=pictures / "claim-form.png", full_page=True)
    form.get_by_role("button", name="Claim", exact=True).click()
    claim = page.get_by_role("article", name="Claim formed")
    expect(claim).to_contain_text("Active", timeout=BOOT_MS)
    expect(claim.get_by_role("link", name="board-1", exact=True)).to_be_visible()
    claim.get_by_role("button", name="Release").click()
    expect(claim).to_have_count(0)


def test_a_page_is_correct_again_after_its_connection_was_lost(
    lab: Service, person: Person
) -> None:
    relay = Relay(int(lab.endpoints["apiserver"].rpartition(":")[2]))
    try:
        person.open_link(lab, through=relay.port)
        person.visit("Targets")
        person.page.get_by_text("Live").wait_for()
        relay.cut()
        person.page.get_by_text("Connection lost").wait_for()
        lab.create_exporter("appeared-meanwhile", {"board": "other"})
        relay.restore()
        person.page.get_by_role("link", name="appeared-meanwhile").wait_for(timeout=BOOT_MS)
        person.page.get_by_text("Live").wait_for()
        lab.kubectl("delete", "exporter", "appeared-meanwhile")
        expect(person.page.get_by_role("link", name="appeared-meanwhile")).to_have_count(0)
    finally:
        relay.close()


@pytest.mark.slow
def test_ten_thousand_targets_are_searched_and_scrolled(
    fresh_service: Service, person: Person, tmp_path: Path
) -> None:
    create_exporters(fresh_service, 10_000)
    person.open_link(fresh_service)
    person.visit("Targets")
    person.page.get_by_text("10,000 of 10,000").wait_for(timeout=BOOT_MS)
    table = person.page.get_by_role("table")
    assert table.get_by_role("row").count() < 100, "only what can be seen is drawn"
    person.page.get_by_label("Targets, rows").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    table.get_by_role("link", name="board-09999").wait_for()
    person.page.keyboard.press("/")
    person.page.keyboard.type("rack=r77")
    person.page.get_by_text("100 of 10,000").wait_for()
    assert "rack%3Dr77" in person.page.url
    person.page.screenshot(path=tmp_path / "many.png")
    person.page.reload()
    person.page.get_by_text("100 of 10,000").wait_for()
    fresh_service.kubectl("delete", "exporter", "board-07742")
    person.page.get_by_text("99 of 9,999").wait_for()
    assert not person.errors


def create_exporters(service: Service, count: int) -> None:
    """Many exporters, of which no process runs; by several connections at once."""
    users = yaml.safe_load((service.data / "kubeconfig").read_text())["users"]
    headers = {
        "Authorization": f"Bearer {users[0]['user']['token']}",
        "Content-Type": "application/json",
    }
    tls = ssl.create_default_context(cafile=service.endpoints["ca"])

    def create(first: int) -> None:
        address = service.endpoints["apiserver"].removeprefix("https://")
        connection = http.client.HTTPSConnection(address, context=tls, timeout=60)
        for number in range(first, count, CONNECTIONS):
            meta = {"name": f"board-{number:05}", "labels": {"rack": f"r{number // 100}"}}
            body = json.dumps({"apiVersion": GROUP, "kind": "Exporter", "metadata": meta})
            path = f"/apis/{GROUP}/namespaces/default/exporters"
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
            answer.read()
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(create, range(CONNECTIONS)))


def test_a_pool_is_scaled_edited_and_paused_from_its_page(
    lab: Service, person: Person, tmp_path: Path
) -> None:
    until(lab, "uboot", availableReplicas=2)
    lab.bullpen("run", "-l", "board=uboot", "--", "true")
    person.open_link(lab)
    person.page.get_by_role("link", name="uboot", exact=True).click()
    person.page.get_by_role("heading", name="uboot", level=1).wait_for()
    assert person.page.url.endswith("/dashboard/pools/default/uboot")
    pool = person.page.get_by_role("region", name="uboot")
    expect(pool).to_contain_text(re.compile(r"Hit rate\d+ %Misses\d+Wait p50.*s"), timeout=BOOT_MS)
    expect(pool).to_contain_text("Start, half within")
    pool.get_by_role("img", name=re.compile("The last .* starts took at most")).wait_for()
    pool.get_by_role("img", name="Members of uboot over the last day").wait_for(timeout=BOOT_MS)
    pool.get_by_role("button", name="Show the month").click()
    pool.get_by_role("img", name="Members of uboot over the last month").wait_for()
    pool.get_by_label("Ceiling").fill("4")
    pool.get_by_role("button", name="Scale").click()
    expect(pool).to_contain_text("ceiling 4")
    pool.get_by_role("button", name="Edit").click()
    pool.get_by_label("Keep warm").fill("9")
    pool.get_by_role("button", name="Save").click()
    expect(pool.get_by_role("alert")).to_contain_text("must not be above maxReplicas")
    pool.get_by_label("Keep warm").fill("1")
    pool.get_by_label("Shrink after").fill("90s")
    assert not person.serious_problems()
    person.page.screenshot(path=tmp_path / "edit.png", full_page=True)
    pool.get_by_role("button", name="Save").click()
    pool.get_by_role("button", name="Edit").wait_for()
    pool.get_by_role("button", name="Pause").click()
    expect(pool).to_contain_text("Paused")
    decisions = pool.get_by_role("list", name="Decisions of uboot")
    expect(decisions).to_contain_text("Drained", timeout=BOOT_MS)
    pool.get_by_role("button", name="Resume").click()
    pool.get_by_role("button", name="Pause").wait_for()
    expect(pool).to_contain_text(re.compile(r"Idle, sum of all targets\d+ .*In use\d+ %"))
    expect(decisions.get_by_role("listitem").nth(7)).to_be_attached(timeout=BOOT_MS)
    assert not person.serious_problems(), "a long list scrolls by keyboard"
    person.page.screenshot(path=tmp_path / "pool.png", full_page=True)
    found = lab.get("exporterset", "uboot")["spec"]
    assert isinstance(found, dict)
    assert found["maxReplicas"] == 4
    assert (found["minAvailableReplicas"], found["scaleDownCooldown"]) == (1, "90s")
    assert not found.get("paused", False)


@pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed")
def test_a_host_is_drained_and_one_that_is_down_is_named(
    lab: Service, person: Person, tmp_path: Path
) -> None:
    with ssh_hosts(tmp_path / "hosts", one=1, two=3) as hosts:
        hosts.hosts["two"].down()
        apply_hosts(lab, hosts)
        try:
            person.open_link(lab)
            person.visit("Hosts")
            bench = person.page.get_by_role("region", name="bench")
            one, two = (bench.get_by_label(f"Host {name}", exact=True) for name in ("one", "two"))
            expect(one).to_contain_text("Up", timeout=BOOT_MS)
            expect(one).to_contain_text("0 of 1 slot")
            expect(one).to_contain_text(re.compile(r"load: CPU \d+ %, memory \d+ %"))
            expect(two).to_contain_text("Down")
            expect(two).to_contain_text("0 of 3 slots")
            expect(bench).to_contain_text("host two")
            one.get_by_role("button", name="Drain host one").click()
            one.get_by_role("button", name="Yes").click()
            expect(one).to_contain_text("Draining", timeout=WAIT_MS)
            for look in (None, NARROW):
                if look is not None:
                    person.page.set_viewport_size(look)  # type: ignore[arg-type]
                assert not person.serious_problems()
                person.page.screenshot(path=tmp_path / f"hosts-{look is None}.png")
            spec: Any = lab.get("providerconfig", "bench")["spec"]
            drained = {host["name"]: host.get("drain") for host in spec["parameters"]["hosts"]}
            assert drained == {"one": True, "two": None}
            person.visit("Overview")
            wrong = person.page.get_by_role("region", name="What is wrong")
            expect(wrong.get_by_role("link", name="bench")).to_be_visible()
            assert not person.errors
        finally:
            lab.kubectl("delete", "providerconfig/bench", "secret/bench-key", "--wait=false")


def test_a_console_is_shared_and_continues_after_its_connection_was_lost(
    lab: Service, browser: Browser
) -> None:
    relay = Relay(int(lab.endpoints["apiserver"].rpartition(":")[2]))
    first, second = Person(browser), Person(browser)
    try:
        first.open_link(lab, through=relay.port)
        first.page.get_by_role("button", name="Open a console on uboot").click()
        expect(screen(first)).to_contain_text("=>", timeout=BOOT_MS)
        second.open_link(lab)
        path = first.page.url.partition("/dashboard/")[2]
        second.page.goto(f"{lab.endpoints['dashboard']}{path}")
        expect(screen(second)).to_contain_text("=>")
        # U-Boot asks for the position of the cursor; no page answers, or answers would be typed.
        expect(screen(second)).not_to_contain_text("Unknown command")
        second.page.keyboard.type("echo typed by the second\n")
        expect(screen(first)).to_contain_text("typed by the second")
        relay.cut()
        first.page.get_by_text("Connection lost").first.wait_for()
        second.page.keyboard.type("echo while the first was away\n")
        expect(screen(second)).to_contain_text("echo while the first was away")
        relay.restore()
        expect(screen(first)).to_contain_text("while the first was away", timeout=BOOT_MS)
        first.page.get_by_role("button", name="Power off").click()
        first.page.get_by_role("button", name="Release").click()
        second.page.get_by_text("The lease has ended").wait_for()
    finally:
        first.close()
        second.close()
        relay.close()


def test_an_image_is_flashed_and_the_screen_is_shown(
    lab: Service, person: Person, tmp_path: Path
) -> None:
    image = tmp_path / "image.raw"
    image.write_bytes(b"FLASHED!" + bytes(2_500_000))
    person.sign_in(lab, token_of(lab.create_client("flasher")))
    page = person.page
    person.visit("Leases")
    page.get_by_label("Labels").fill("board=uboot")
    page.get_by_role("button", name="Lease", exact=True).click()
    page.get_by_role("article").filter(has_text="flasher").get_by_role(
        "link", name="Console"
    ).click()
    page.get_by_text("Connected").wait_for(timeout=BOOT_MS)
    page.get_by_role("button", name="Flash").click()
    flash = page.get_by_role("region", name="Flash an image")
    flash.get_by_label("Image").set_input_files(image)
    flash.get_by_label("Partition").fill("nothing")
    flash.get_by_role("button", name="Flash the image").click()
    expect(flash.get_by_role("alert")).to_contain_text("invalid partition name: nothing")
    flash.get_by_label("Partition").fill("")
    page.evaluate(WATCH_PROGRESS)
    flash.get_by_role("button", name="Flash the image").click()
    expect(flash).to_contain_text("image.raw is flashed", timeout=BOOT_MS)
    shown: list[int] = page.evaluate("seen")
    assert shown == sorted(shown)
    assert any(0 < value < image.stat().st_size for value in shown), "it moves while it works"
    assert shown[-1] == image.stat().st_size
    assert not person.serious_problems()
    page.screenshot(path=tmp_path / "flash.png")
    page.get_by_role("button", name="Power on").click()
    expect(screen(person)).to_contain_text("=>", timeout=BOOT_MS)
    flash.get_by_role("button", name="Flash the image").click()
    expect(flash.get_by_role("alert")).to_contain_text("switch it off first", timeout=BOOT_MS)
    page.get_by_role("textbox", name="Terminal input").focus()
    page.keyboard.type("virtio scan; virtio read $loadaddr 0 1; md.b $loadaddr 10\n")
    expect(screen(person)).to_contain_text("FLASHED!", timeout=BOOT_MS)

    page.get_by_role("button", name="Screen").click()
    vnc = page.get_by_role("region", name="Screen")
    expect(vnc).to_contain_text("Connected", timeout=BOOT_MS)
    eventually(lambda: brightest(vnc) > 0, seconds=120, what="a picture on the screen")
    for name, look in (("wide", None), ("narrow", NARROW)):
        if look is not None:
            page.set_viewport_size(look)  # type: ignore[arg-type]
        assert not person.serious_problems()
        page.screenshot(path=tmp_path / f"screen-{name}.png", full_page=True)
    vnc.locator("canvas").click()
    page.keyboard.type("typed at the screen")
    page.get_by_role("button", name="Release").click()
    page.get_by_role("heading", name="Overview").wait_for()
    # The browser reports the three answers that refuse an image.
    assert [error for error in person.errors if "/flash" not in error] == []


WATCH_PROGRESS = """() => {
  window.seen = [0];
  const look = () => {
    const bar = document.querySelector("progress");
    if (bar && bar.value !== window.seen.at(-1)) window.seen.push(bar.value);
  };
  const whatever = { subtree: true, childList: true, attributes: true, characterData: true };
  new MutationObserver(look).observe(document.body, whatever);
}"""
"""Keeps the values of the progress bar as it moves."""


def test_a_target_without_a_serial_port_is_flashed(
    lab: Service, person: Person, tmp_path: Path
) -> None:
    image = tmp_path / "image.raw"
    image.write_bytes(b"x" * 1_000)
    storage = {"type": "jumpstarter_driver_opendal.driver.MockFlasher"}
    board = lab.create_exporter("silent", {"kind": "silent"}, export={"storage": storage})
    with lab.exporter(board):
        person.sign_in(lab, token_of(lab.create_client("silent-user")))
        page = person.page
        person.visit("Leases")
        page.get_by_label("Labels").fill("kind=silent")
        page.get_by_role("button", name="Lease and open the console").click()
        page.get_by_text("This target has no serial port").wait_for(timeout=BOOT_MS)
        flash = page.get_by_role("region", name="Flash an image")
        flash.get_by_label("Image").set_input_files(image)
        flash.get_by_role("button", name="Flash the image").click()
        expect(flash).to_contain_text("image.raw is flashed", timeout=BOOT_MS)
        expect(flash).not_to_contain_text("switch the machine on")
        assert page.get_by_role("button", name="Power on").count() == 0
        page.screenshot(path=tmp_path / "silent.png")
        page.get_by_role("button", name="Release").click()
        page.get_by_role("heading", name="Overview").wait_for()
    assert not person.errors


def test_a_screen_with_a_password_is_shown_to_who_knows_it(
    lab: Service, person: Person, tmp_path: Path
) -> None:
    number = free_port_base() - 5900
    network = "jumpstarter_driver_network.driver.TcpNetwork"
    screen_driver = {"type": network, "config": {"host": "127.0.0.1", "port": 5900 + number}}
    board = lab.create_exporter("secret", {"kind": "secret"}, export={"vnc": screen_driver})
    machine = subprocess.Popen(
        [
            *("qemu-system-x86_64", "-S", "-object", "secret,id=word,data=pass-123"),
            *("-vnc", f"127.0.0.1:{number},password-secret=word"),
        ]
    )
    try:
        with lab.exporter(board):
            person.sign_in(lab, token_of(lab.create_client("looker")))
            page = person.page
            person.visit("Leases")
            page.get_by_label("Labels").fill("kind=secret")
            page.get_by_role("button", name="Lease and open the console").click()
            vnc = page.get_by_role("region", name="Screen")
            vnc.get_by_label("Password of the screen").fill("wrong")
            vnc.get_by_role("button", name="Connect", exact=True).click()
            vnc.get_by_text("The screen refused the password").wait_for()
            vnc.get_by_role("button", name="Connect again").click()
            vnc.get_by_label("Password of the screen").fill("pass-123")
            assert not person.serious_problems()
            page.screenshot(path=tmp_path / "password.png")
            vnc.get_by_role("button", name="Connect", exact=True).click()
            expect(vnc).to_contain_text("Connected", timeout=BOOT_MS)
            eventually(lambda: brightest(vnc) > 0, seconds=60, what="a picture on the screen")
            page.get_by_role("button", name="Release").click()
            page.get_by_role("heading", name="Overview").wait_for()
    finally:
        machine.terminate()
        machine.wait(10)


def brightest(vnc: Locator) -> int:
    """The brightest value in the picture; 0 while it is black."""
    found: int = vnc.locator("canvas").evaluate(
        "canvas => Math.max(0, ...canvas.getContext('2d')"
        ".getImageData(0, 0, canvas.width, canvas.height).data.filter((_, i) => i % 4 === 0)"
        ".reduce((seen, value) => seen.add(value), new Set()))"
    )
    return found
