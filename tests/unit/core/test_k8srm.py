"""Files of the k8srm prototype: each deviation from its types is normalised or refused by path."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.paths import Document
from bullpen.core.claims import k8srm
from bullpen.core.claims.allocator import Verdict
from bullpen.core.claims.k8srm import NodeAnswer, Prototype
from support.claim_reference import allocator_of


def made(kind: str, name: str, spec: Document, **labels: str) -> Document:
    return {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def attribute(name: str, value: Any, kind: str = "stringValue") -> Document:
    return {"name": name, kind: value}


def cards(node: str, count: int = 2, **more: Any) -> Document:
    devices = [
        {"name": f"card-{n}", "attributes": [attribute("model", "fast")], **more}
        for n in range(count)
    ]
    spec = {"nodeName": node, "driver": "cards.test", "devices": devices}
    return made("DevicePool", f"{node}-cards", spec)


CLASS = made("DeviceClass", "card", {"definition": {"driver": "cards.test"}}, type="gpu")


def claim(*entries: Document, name: str = "claim", **spec: Any) -> Document:
    return made("DeviceClaim", name, {"devices": list(entries), **spec})


def entry(**detail: Any) -> Document:
    return {"name": "gpu", "allOf": [{"class": "card", **detail}]}


def pod(name: str = "pod", **claims: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"deviceClaims": claims},
    }


def findings(found: Prototype) -> list[tuple[str, bool]]:
    return [(finding.path, finding.refused) for finding in found.findings]


def placed(found: Prototype, claim: str = "claim") -> NodeAnswer:
    return k8srm.on_nodes(allocator_of(found.inventory, found.classes), found.claims[claim])


def test_files_that_follow_the_types_need_no_remark() -> None:
    found = k8srm.read([cards("node-1"), CLASS, claim(entry(requests={"devices": 2}))])
    assert found.findings == ()
    answer = placed(found)
    assert answer.node == "node-1"
    assert answer.answer.devices == ("node-1-cards/card-0", "node-1-cards/card-1")


@pytest.mark.parametrize(
    ("document", "path", "refused"),
    [
        (made("DeviceClass", "c", {"driver": "cards.test"}), "DeviceClass/c.spec", False),
        (made("DeviceClass", "c", {"configs": []}), "DeviceClass/c.spec", True),
        (
            made("DeviceClass", "c", {"definition": {"driver": "d", "constraints": "a =="}}),
            "DeviceClass/c.spec.definition.constraints",
            True,
        ),
        (claim(entry(devices=2)), "DeviceClaim/claim.spec.devices[0].allOf[0].devices", False),
        (claim(entry(config=[])), "DeviceClaim/claim.spec.devices[0].allOf[0].config", False),
        (
            claim(entry(distinctAttributes=["card"])),
            "DeviceClaim/claim.spec.devices[0].allOf[0].distinctAttributes",
            False,
        ),
        (
            claim(entry(allowShared=True)),
            "DeviceClaim/claim.spec.devices[0].allOf[0].allowShared",
            False,
        ),
        (
            claim({"name": "gpu", "class": "card"}),
            "DeviceClaim/claim.spec.devices[0].class",
            False,
        ),
        (claim({"name": "gpu"}), "DeviceClaim/claim.spec.devices[0]", True),
        (
            claim(entry(adminAccess=True)),
            "DeviceClaim/claim.spec.devices[0].allOf[0].adminAccess",
            True,
        ),
        (
            claim(entry(reqests={"devices": 2})),
            "DeviceClaim/claim.spec.devices[0].allOf[0].reqests",
            True,
        ),
        (
            made("DevicePool", "n-p", {"nodeName": "n", "sharedResources": {"slots": 2}}),
            "DevicePool/n-p.spec.sharedResources",
            False,
        ),
        (
            # Not node-00 and something: the number of the node goes on.
            made("DevicePool", "node-001-p", {"nodeName": "node-00"}),
            "DevicePool/node-001-p.spec.nodeName",
            False,
        ),
        (
            cards("n", sharedResourcesConsumed={"slices-00": 1}),
            "DevicePool/n-cards.spec.devices[0].sharedResourcesConsumed[slices-00]",
            True,
        ),
        (
            cards("n", claimResourcesProvided={"memory": "40Gi"}),
            "DevicePool/n-cards.spec.devices[0].claimResourcesProvided",
            False,
        ),
        (pod(claimName="nobody"), "Pod/pod.spec.deviceClaims", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_deviation_from_the_types_is_reported_by_its_path(
    document: Document, path: str, refused: bool
) -> None:
    assert (path, refused) in findings(k8srm.read([document]))


def test_a_pool_with_a_dangling_counter_is_left_out_and_the_others_stay() -> None:
    """X27."""
    bad = cards("node-1", sharedResourcesConsumed={"slices-00": 1})
    found = k8srm.read([bad, cards("node-2"), CLASS, claim(entry())])
    assert placed(found).node == "node-2"
    assert [str(finding) for finding in found.findings] == [
        "DevicePool/node-1-cards.spec.devices[0].sharedResourcesConsumed[slices-00]: refused:"
        " the pool does not publish this shared resource; it has none"
    ]


def test_a_quantity_that_is_compared_with_a_string_is_compared_as_a_quantity() -> None:
    pool = made(
        "DevicePool",
        "n-nic",
        {
            "nodeName": "n",
            "driver": "nic.test",
            "devices": [
                {"name": speed, "attributes": [attribute("bandwidth", speed, "quantityValue")]}
                for speed in ("900M", "10G")
            ],
        },
    )
    fast = {"definition": {"driver": "nic.test", "constraints": "device.bandwidth >= '1G'"}}
    found = k8srm.read(
        [
            pool,
            made("DeviceClass", "fast", fast),
            claim({"name": "n", "allOf": [{"class": "fast"}]}),
        ]
    )
    assert findings(found) == [("DeviceClass/fast.spec.definition.constraints", False)]
    assert placed(found).answer.devices == ("n-nic/10G",)


def test_a_group_class_stands_for_the_classes_with_its_labels() -> None:
    group = made("DeviceClass", "any-gpu", {"selector": {"matchLabels": {"type": "gpu"}}})
    asked = claim({"name": "gpu", "allOf": [{"class": "any-gpu"}]})
    assert placed(k8srm.read([cards("n"), CLASS, group, asked])).node == "n"


def test_alternatives_are_taken_in_order_and_the_better_node_wins() -> None:
    ladder = {
        "name": "gpu",
        "oneOf": [
            {"class": "card", "requests": {"devices": 3}},
            {"class": "card", "requests": {"devices": 1}},
        ],
    }
    found = k8srm.read([cards("node-1", 2), cards("node-2", 3), CLASS, claim(ladder)])
    answer = placed(found)
    assert answer.node == "node-2"
    assert answer.answer.alternatives == {"gpu": 0}


def test_the_devices_of_a_pod_are_on_one_node() -> None:
    found = k8srm.read(
        [cards("node-1", 1), cards("node-2", 1), CLASS, claim(entry(requests={"devices": 2}))]
    )
    assert placed(found).answer.verdict is Verdict.UNSATISFIABLE


def test_totals_are_reached_over_several_devices() -> None:
    pool = cards("n", 4, claimResourcesProvided=[{"name": "memory", "capacity": "40Gi"}])
    asked = claim(entry(requests={"memory": "100Gi"}, maxDevices=8))
    assert len(placed(k8srm.read([pool, CLASS, asked])).answer.devices) == 3


def test_pods_have_claims_of_their_own_or_share_one() -> None:
    found = k8srm.read(
        [
            cards("n"),
            CLASS,
            claim(entry()),
            pod("inline", devices=[{"name": "gpu", "class": "card"}]),
            pod("copy", template={"claimName": "claim"}),
            pod("one", claimName="claim"),
            pod("two", claimName="claim"),
        ]
    )
    assert found.pods == {
        "inline": "pod/inline",
        "copy": "pod/copy",
        "one": "claim",
        "two": "claim",
    }
    assert placed(found, "pod/inline").node == "n"
