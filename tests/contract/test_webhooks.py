"""Messages to webhooks are sent in order, again after a failure, and within bounds."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.meta import ObjectMeta
from bullpen.controllers import webhooks
from bullpen.controllers.webhooks import AGE_MAX, WebhookReconciler
from bullpen.core import conditions
from bullpen.core.notifications import Webhook
from bullpen.errors import Unavailable
from bullpen.kit.clock import EPOCH, VirtualClock
from bullpen.kit.ids import RandomIds

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
