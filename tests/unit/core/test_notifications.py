"""What webhooks are told, and how it is signed."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import Condition, LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.core import conditions, notifications
from bullpen.core.notifications import Notification, Webhook
from bullpen.errors import BadRequest
from bullpen.kit.clock import EPOCH

HOOK = Webhook(name="chat", url="http://a", secret=("lab", "s"))


def condition(type_: str, *, holds: bool, reason: str = "Test") -> tuple[Condition, ...]:
    return conditions.condition(
        (), type_, status=holds, reason=reason, message="said", generation=1, now=EPOCH
    )


def lease(**status: object) -> Lease:
    return Lease(
        metadata=ObjectMeta(name="l", namespace="lab", creation_timestamp=EPOCH),
        spec=LeaseSpec(
            client_ref=LocalObjectReference(name="alice"),
            selector=LabelSelector(match_labels={"board": "x"}),
        ),
        status=LeaseStatus(**status),  # type: ignore[arg-type]
    )


def told(old: Lease | None, new: Lease, *, since: datetime = EPOCH) -> list[Notification]:
    return list(notifications.lease_notifications(old, new, since=since))


def test_a_lease_is_told_from_its_request_to_its_end() -> None:
    asked = lease()
    (requested,) = told(None, asked)
    assert (requested.event, requested.subject) == ("lease.requested", "leases/l")
    assert requested.data == {"client": "alice", "selector": "board=x"}
    held = lease(
        begin_time=EPOCH + timedelta(seconds=3), exporter_ref=LocalObjectReference(name="e")
    )
    (assigned,) = told(asked, held)
    assert (assigned.event, assigned.data["exporter"]) == ("lease.assigned", "e")
    over = replace(
        held,
        status=replace(
            held.status,
            ended=True,
            end_time=EPOCH + timedelta(minutes=2),
            conditions=condition("Ready", holds=False, reason="Released"),
        ),
    )
    (ended,) = told(held, over)
    assert (ended.event, ended.data["reason"]) == ("lease.ended", "Released")


def test_what_was_there_before_is_not_told() -> None:
    assert told(None, lease(), since=EPOCH + timedelta(seconds=1)) == []
    online = Exporter(status=ExporterStatus(conditions=condition("Online", holds=True)))
    assert list(notifications.exporter_notifications(None, online)) == []


def test_an_exporter_is_told_when_it_comes_goes_and_gets_stuck() -> None:
    meta = ObjectMeta(name="e", namespace="lab")
    states = {
        name: Exporter(metadata=meta, status=ExporterStatus(conditions=found))
        for name, found in {
            "off": condition("Online", holds=False),
            "on": condition("Online", holds=True),
            "stuck": (*condition("Online", holds=True), *condition("Stuck", holds=True)),
        }.items()
    }

    def events(old: str, new: str) -> list[str]:
        found = notifications.exporter_notifications(states[old], states[new])
        return [each.event for each in found]

    assert events("off", "on") == ["exporter.online"]
    assert events("on", "off") == ["exporter.offline"]
    assert events("on", "stuck") == ["exporter.stuck"]
    assert events("on", "on") == []


@pytest.mark.parametrize(
    ("hook", "wanted"),
    [
        pytest.param(HOOK, True, id="everything"),
        pytest.param(replace(HOOK, events=frozenset({"lease.ended"})), False, id="another event"),
        pytest.param(replace(HOOK, namespaces=frozenset({"other"})), False, id="elsewhere"),
        pytest.param(replace(HOOK, namespaces=frozenset({"lab"})), True, id="here"),
    ],
)
def test_a_webhook_is_told_what_it_asked_for(hook: Webhook, wanted: bool) -> None:
    found = Notification(event="lease.requested", namespace="lab", subject="leases/l")
    assert hook.wants(found) is wanted


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the reference implementations of Standard Webhooks."""
    key = notifications.signing_key(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    headers = notifications.signed_headers(
        key,
        b'{"test": 2432232314}',
        id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        time=datetime.fromtimestamp(1614265330, UTC),
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("written", [b"no base64!", base64.b64encode(b"short"), b"\xff"])
def test_a_key_that_is_none_is_refused(written: bytes) -> None:
    with pytest.raises(BadRequest, match="the key must"):
        notifications.signing_key(written)
