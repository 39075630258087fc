"""Messages to webhooks: what they tell of a lab, in order, again after a failure, within bounds."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.meta import ObjectMeta
from bullpen.app import lab as app_lab
from bullpen.controllers import webhooks
from bullpen.controllers.webhooks import AGE_MAX, WebhookReconciler
from bullpen.core import conditions
from bullpen.core.notifications import Webhook
from bullpen.errors import Unavailable
from bullpen.kit.clock import EPOCH, VirtualClock
from bullpen.kit.ids import RandomIds
from support.lab_world import SPACE, LabWorld

CHAT = Webhook(name="chat", url="http://chat", secret=("lab", "key"))
BILLS = Webhook(name="bills", url="http://bills", secret=("lab", "key"))
SECRET = Secret(
    metadata=ObjectMeta(name="key", namespace="lab"),
    data={"key": base64.b64encode(base64.b64encode(bytes(24))).decode()},
)


class View:
    def __init__(self, *found: Any) -> None:
        self.found = {(each.metadata.namespace, each.metadata.name): each for each in found}
        self.listeners: list[Callable[[Any, Any], None]] = []

    def listen(self, listener: Callable[[Any, Any], None]) -> None:
        self.listeners.append(listener)

    def get(self, namespace: str, name: str) -> Any:
        return self.found.get((namespace, name))


class Views:
    def __init__(self, *secrets: Secret) -> None:
        self.leases, self.exporters, self.secrets = View(), View(), View(*secrets)

    def __getitem__(self, kind: type[Secret]) -> View:
        return self.secrets


class Receiver:
    """Answers with what it is told to, then with 204."""

    def __init__(self, *answers: int | Unavailable) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, str, str]] = []

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        self.got.append((url, json.loads(body)["subject"], headers["webhook-id"]))
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, Unavailable):
            raise answer
        return answer


class Bench:
    def __init__(self, *hooks: Webhook, answers: tuple[int | Unavailable, ...] = ()) -> None:
        self.views, self.clock, self.receiver = Views(SECRET), VirtualClock(), Receiver(*answers)
        self.due: list[str] = []
        self.reconciler = WebhookReconciler(
            hooks,
            self.views,  # type: ignore[arg-type]
            clock=self.clock,
            ids=RandomIds(random.Random(1)),
            post=self.receiver.post,
        )
        self.reconciler.watch(self.due.append)

    def comes(self, name: str) -> None:
        """An exporter connects."""
        old, new = (
            Exporter(
                metadata=ObjectMeta(name=name, namespace="lab"),
                status=ExporterStatus(
                    conditions=conditions.condition(
                        (),
                        "Online",
                        status=online,
                        reason="Test",
                        message="",
                        generation=1,
                        now=EPOCH,
                    )
                ),
            )
            for online in (False, True)
        )
        for listener in self.views.exporters.listeners:
            listener(old, new)

    def deliver(self, name: str = "chat") -> None:
        asyncio.run(self.reconciler.reconcile(name))


def test_each_webhook_is_told_in_order() -> None:
    bench = Bench(CHAT, BILLS)
    bench.comes("a")
    bench.comes("b")
    assert bench.due == ["chat", "bills", "chat", "bills"]
    bench.deliver("bills")
    bench.deliver("chat")
    assert [(url, subject) for url, subject, _ in bench.receiver.got] == [
        ("http://bills", "exporters/a"),
        ("http://bills", "exporters/b"),
        ("http://chat", "exporters/a"),
        ("http://chat", "exporters/b"),
    ]
    assert bench.reconciler.queued() == {"chat": 0, "bills": 0}


def test_what_failed_is_sent_again_with_the_same_id_before_the_next() -> None:
    bench = Bench(CHAT, answers=(Unavailable("no answer"), 500))
    bench.comes("a")
    bench.comes("b")
    for _ in range(2):
        with pytest.raises(Unavailable):
            bench.deliver()
    bench.deliver()
    subjects = [subject for _, subject, _ in bench.receiver.got]
    assert subjects == ["exporters/a", "exporters/a", "exporters/a", "exporters/b"]
    assert len({id for _, _, id in bench.receiver.got}) == 2
    assert bench.reconciler.results == {("chat", "failed"): 2, ("chat", "delivered"): 2}


def test_a_message_is_given_up_after_its_time() -> None:
    bench = Bench(CHAT)
    bench.comes("a")
    bench.clock.advance(AGE_MAX)
    bench.comes("b")
    bench.deliver()
    assert [subject for _, subject, _ in bench.receiver.got] == ["exporters/b"]
    assert bench.reconciler.results["chat", "given up"] == 1


def test_a_full_queue_gives_up_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "QUEUE_MAX", 2)
    bench = Bench(CHAT)
    for name in "abc":
        bench.comes(name)
    bench.deliver()
    assert [subject for _, subject, _ in bench.receiver.got] == ["exporters/b", "exporters/c"]


def test_messages_wait_for_a_key() -> None:
    bench = Bench(CHAT)
    bench.views.secrets.found.clear()
    bench.comes("a")
    with pytest.raises(Unavailable, match="Secret lab/key with the entry key is missing"):
        bench.deliver()
    bench.views.secrets.found["lab", "key"] = SECRET
    bench.deliver()
    assert len(bench.receiver.got) == 1


def test_a_lab_without_webhooks_listens_to_nothing() -> None:
    bench = Bench()
    assert bench.views.leases.listeners == bench.views.exporters.listeners == []


Told = list[tuple[str, str, dict[str, str]]]
HOUR = timedelta(hours=1)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Event, subject and data of each message that a lab sends."""
    found: Told = []

    async def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
        message = json.loads(body)
        assert message["source"] == f"bullpen/{SPACE}"
        found.append((message["type"], message["subject"], message["data"]))
        return 204

    monkeypatch.setattr(app_lab, "post", post)
    return found


async def listening(world: LabWorld) -> None:
    """With a webhook whose key is in the namespace of the lab."""
    world.webhooks = (replace(CHAT, secret=(SPACE, "key")),)
    await world.objects.create(replace(SECRET, metadata=ObjectMeta(name="key", namespace=SPACE)))


def test_a_lease_is_told_from_its_request_to_its_end_with_its_wait(told: Told) -> None:
    async def story(world: LabWorld) -> None:
        await listening(world)
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.make_lease("two", client="bob")
            await asyncio.sleep(30)
            await world.edit_lease("one", release=True)
            await world.assigned("two")
            await world.edit_lease("two", release=True)
            await world.ended("two")
            await world.settle()
        asked = {"client": "alice", "selector": "board=x"}
        leases = [each for each in told if each[1] == "leases/one"]
        assert leases == [
            ("dev.bullpen.lease.requested", "leases/one", asked),
            (
                "dev.bullpen.lease.assigned",
                "leases/one",
                {**asked, "exporter": "e1", "waited": "0s"},
            ),
            (
                "dev.bullpen.lease.ended",
                "leases/one",
                {**asked, "reason": "Released", "held": "30s", "exporter": "e1"},
            ),
        ]
        (waited,) = [
            data["waited"]
            for event, subject, data in told
            if event.endswith("assigned") and subject == "leases/two"
        ]
        assert waited == "30s"

    LabWorld().run_without_service(story)


def test_a_booked_lease_waits_from_its_begin(told: Told) -> None:
    async def story(world: LabWorld) -> None:
        await listening(world)
        async with world.service(), world.player():
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            await world.until(
                lambda: world.lease("booked").status.exporter_ref, seconds=2 * HOUR.total_seconds()
            )
            await world.settle()
        (data,) = [data for event, _, data in told if event.endswith("assigned")]
        assert data["waited"] == "0s"

    LabWorld().run_without_service(story)


def test_an_exporter_is_told_when_it_comes_and_goes_and_not_when_it_is_deleted(told: Told) -> None:
    async def story(world: LabWorld) -> None:
        await listening(world)
        async with world.service():
            async with world.player():
                await world.settle()
            await asyncio.sleep(10)
            await world.objects.delete(world.exporter())
            await world.settle()
        events = [event for event, subject, _ in told if subject == "exporters/e1"]
        assert events == ["dev.bullpen.exporter.online", "dev.bullpen.exporter.offline"]

    LabWorld().run_without_service(story)


def test_an_exporter_that_is_stuck_is_told_with_its_lease(told: Told) -> None:
    async def story(world: LabWorld) -> None:
        await listening(world)
        async with world.service(), world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await world.until(
                lambda: any(event.endswith("stuck") for event, _, _ in told), seconds=600
            )
        assert [subject for event, subject, _ in told if event.endswith("stuck")] == [
            "exporters/e1"
        ]

    LabWorld().run_without_service(story)


def test_what_was_there_when_the_service_started_is_not_told(told: Told) -> None:
    async def story(world: LabWorld) -> None:
        await listening(world)
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
        told.clear()
        await asyncio.sleep(5)
        async with world.service(), world.player():
            await world.settle()
        assert [each for each in told if each[1].startswith("leases/")] == []

    LabWorld().run_without_service(story)


def test_a_lease_of_a_client_that_is_deleted_ends_and_is_told(told: Told) -> None:
    async def story(world: LabWorld) -> None:
        await listening(world)
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.objects.delete(await world.objects.get(Client, SPACE, "alice"))
            await world.ended("one")
            await world.settle()
        (data,) = [data for event, _, data in told if event.endswith("ended")]
        assert data["reason"] == "ClientRemoved"

    LabWorld().run_without_service(story)
