"""The form of a new claim: what it means, what it would get, and who may use it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass, DeviceClassSpec, DeviceSelector
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.dashboard.claim_form import WantedClaim, spec_of
from bullpen.errors import BadRequest
from support.dashboard_world import ADMIN_TOKEN, VIEW_TOKEN, DashboardWorld, client_token

LINE = {"name": "dut", "class": "board"}


def form(*lines: dict[str, Any], **fields: str) -> dict[str, Any]:
    return {"namespace": "default", "client": "alice", "requests": [*(lines or (LINE,))], **fields}


def test_a_form_is_the_spec_of_a_claim() -> None:
    line = {**LINE, "count": 2, "labels": "arch in (arm64, riscv64)"}
    filled = form(line, same="site", duration="1h", begin="2026-01-02T03:04:05Z")
    expression = {"key": "arch", "operator": "In", "values": ["arm64", "riscv64"]}
    labels = {"matchLabels": {}, "matchExpressions": [expression]}
    assert spec_of(msgspec.convert(filled, WantedClaim)) == {
        "duration": "1h0m0s",
        "beginTime": "2026-01-02T03:04:05Z",
        "requests": [
            {
                "name": "dut",
                "exactly": {
                    "deviceClassName": "board",
                    "count": 2,
                    "selectors": [{"labels": labels}],
                },
            }
        ],
        "constraints": [{"matchAttribute": "site"}],
    }


@pytest.mark.parametrize(
    ("filled", "said"),
    [
        pytest.param({**form(), "requests": []}, "between 1 and", id="no request"),
        pytest.param(form({"name": "dut", "class": ""}), "which class", id="no class"),
        pytest.param(form(duration="0s"), "above zero", id="no duration"),
        pytest.param(form(begin="soon"), "begin: ", id="no time"),
    ],
)
def test_a_form_that_means_nothing_is_refused(filled: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        spec_of(msgspec.convert(filled, WantedClaim))


def test_a_form_shows_what_it_would_get_and_makes_the_claim() -> None:
    async def story(world: DashboardWorld) -> None:
        selector = DeviceSelector(labels=LabelSelector(match_labels={"board": "x"}))
        spec = DeviceClassSpec(selectors=(selector,))
        await world.objects.create(DeviceClass(metadata=ObjectMeta(name="board"), spec=spec))
        await world.make_exporter("e1")
        alice = await world.browser(client_token("alice"))
        assert (await alice.call("GET", "classes")).document == {"classes": ["board"]}
        found = (await alice.call("POST", "claims/preview", form())).document
        assert found["verdict"] == "Unsatisfiable", "the exporter is not connected"
        assert found["reasons"] == ["dut needs 1, no free device qualifies"]
        made = await alice.call("POST", "claims", form(name="mine"))
        assert made.status == 201, made.document
        claim = await world.objects.get(DeviceClaim, "default", "mine")
        assert claim.spec.client_ref.name == "alice"
        admin = await world.browser(ADMIN_TOKEN)
        assert (await admin.call("POST", "claims", form(name="other"))).status == 201

    DashboardWorld().run(story)


def test_others_can_neither_look_nor_claim_as_a_client() -> None:
    async def story(world: DashboardWorld) -> None:
        await world.make_exporter("e1")
        for token in (client_token("bob"), VIEW_TOKEN):
            other = await world.browser(token)
            assert (await other.call("POST", "claims/preview", form())).status == 403
            assert (await other.call("POST", "claims", form())).status == 403
        viewer = await world.browser(VIEW_TOKEN)
        assert (await viewer.call("GET", "classes")).document == {"classes": []}

    DashboardWorld().run(story)
