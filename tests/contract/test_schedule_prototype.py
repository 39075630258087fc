"""``bullpen schedule`` on files of the k8srm prototype: nodes, devices, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bullpen.api.paths import Document
from support.schedule_files import run, written


def made(kind: str, name: str, spec: Document, **labels: str) -> Document:
    return {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def cards(node: str, count: int = 2, **more: Any) -> Document:
    devices = [
        {
            "name": f"card-{n}",
            "attributes": [
                {"name": "model", "stringValue": "fast" if n else "slow"},
                {"name": "root", "stringValue": f"r{n % 2}"},
            ],
            **more,
        }
        for n in range(count)
    ]
    spec = {"nodeName": node, "driver": "cards.test", "devices": devices}
    return made("DevicePool", f"{node}-cards", spec)


CARD = made("DeviceClass", "card", {"definition": {"driver": "cards.test"}}, type="gpu")


def claim(*entries: Document, **spec: Any) -> Document:
    return made("DeviceClaim", "claim", {"devices": list(entries), **spec})


def entry(**detail: Any) -> Document:
    return {"name": "gpu", "allOf": [{"class": "card", **detail}]}


def pod(name: str, **claims: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"deviceClaims": claims},
    }


def asked(directory: Path, *documents: Document) -> tuple[int, list[str], list[list[str]]]:
    """The exit code, what is reported, and the rows of the answer without its headings."""
    code, said = run("-f", str(written(directory / "files.yaml", *documents)))
    head, _, rows = said.partition("CLAIM")
    return code, head.splitlines(), [row.split(None, 3) for row in rows.splitlines()[1:]]


def test_files_that_follow_the_types_are_answered_without_a_remark(tmp_path: Path) -> None:
    two = claim(entry(requests={"devices": 2}))
    assert asked(tmp_path, cards("n1"), CARD, two) == (
        0,
        [],
        [["claim", "n1", "now", "n1-cards/card-0, n1-cards/card-1"]],
    )


def test_all_devices_of_a_pod_are_on_one_node(tmp_path: Path) -> None:
    two = claim(entry(requests={"devices": 2}))
    code, _, rows = asked(tmp_path, cards("n1", 1), cards("n2", 1), CARD, two)
    assert (code, rows[0][1]) == (3, "never")
    code, _, rows = asked(tmp_path, cards("n1", 1), cards("n2", 2), CARD, two)
    assert (code, rows[0][1]) == (0, "n2")


def test_the_node_with_the_earlier_alternative_wins_and_then_the_first(tmp_path: Path) -> None:
    steps = [{"class": "card", "requests": {"devices": count}} for count in (3, 1)]
    ladder = claim({"name": "gpu", "oneOf": steps})
    _, _, rows = asked(tmp_path, cards("n1", 2), cards("n2", 3), CARD, ladder)
    assert rows[0][1:] == ["n2", "now", "n2-cards/card-0, n2-cards/card-1, n2-cards/card-2"]
    _, _, rows = asked(tmp_path, cards("n2", 2), cards("n1", 2), CARD, ladder)
    assert rows[0][1:] == ["n1", "now", "n1-cards/card-0"]


def test_devices_in_the_network_serve_every_node(tmp_path: Path) -> None:
    shared = made("DevicePool", "net", {"driver": "net.test", "devices": [{"name": "vip"}]})
    vip = made("DeviceClass", "vip", {"definition": {"driver": "net.test"}})
    both = claim(entry(), {"name": "address", "allOf": [{"class": "vip"}]})
    code, _, rows = asked(tmp_path, shared, vip, cards("n1", 1), CARD, both)
    assert (code, rows) == (0, [["claim", "n1", "now", "n1-cards/card-0, net/vip"]])


@pytest.mark.parametrize(
    ("detail", "devices"),
    [
        ({"constraints": "device.model == 'fast'"}, "n-cards/card-1"),
        (
            {"requests": {"devices": 2}, "matchAttributes": ["root"]},
            "n-cards/card-0, n-cards/card-2",
        ),
        (
            {"requests": {"devices": 2}, "matchAttributes": ["model"]},
            "n-cards/card-1, n-cards/card-2",
        ),
    ],
    ids=["constraint", "same root", "same model"],
)
def test_conditions_of_a_detail_hold(tmp_path: Path, detail: Document, devices: str) -> None:
    code, said, rows = asked(tmp_path, cards("n", 3), CARD, claim(entry(**detail)))
    assert (code, said, rows[0][3]) == (0, [], devices)


def test_conditions_of_a_claim_hold_across_its_entries(tmp_path: Path) -> None:
    second = {"name": "other", "allOf": [{"class": "card"}]}
    one = claim(entry(constraints="device.model == 'fast'"), second, matchAttributes=["root"])
    code, _, rows = asked(tmp_path, cards("n", 4), CARD, one)
    assert (code, rows[0][3]) == (0, "n-cards/card-1, n-cards/card-3")
    assert asked(tmp_path, cards("n", 2), CARD, one)[0] == 3


def test_each_detail_of_an_entry_is_served(tmp_path: Path) -> None:
    slow, fast = (
        {"class": "card", "constraints": f"device.model == '{m}'"} for m in ("slow", "fast")
    )
    both = claim({"name": "gpu", "allOf": [fast, slow]})
    _, _, rows = asked(tmp_path, cards("n"), CARD, both)
    assert rows[0][3] == "n-cards/card-1, n-cards/card-0"
    mixed = claim({"name": "gpu", "allOf": [slow], "oneOf": [fast, slow]})
    _, _, rows = asked(tmp_path, cards("n"), CARD, mixed)
    assert rows[0][3] == "n-cards/card-0, n-cards/card-1"


@pytest.mark.parametrize(
    ("most", "devices"),
    [(8, 3), (3, 3), (2, 0), (1, 0)],
    ids=["enough", "just enough", "too few", "one"],
)
def test_amounts_are_reached_by_as_few_devices_as_possible(
    tmp_path: Path, most: int, devices: int
) -> None:
    pool = cards("n", 4, claimResourcesProvided=[{"name": "memory", "capacity": "40Gi"}])
    one = claim(entry(requests={"memory": "100Gi"}, maxDevices=most))
    code, _, rows = asked(tmp_path, pool, CARD, one)
    assert code == (0 if devices else 3)
    assert not devices or len(rows[0][3].split(", ")) == devices


def test_a_device_that_is_asked_for_an_amount_has_it(tmp_path: Path) -> None:
    for asked_for, code in (("40Gi", 0), ("41Gi", 3)):
        pool = cards("n", 1, claimResourcesProvided=[{"name": "memory", "capacity": "40Gi"}])
        one = claim(entry(requests={"memory": asked_for}))
        assert asked(tmp_path, pool, CARD, one)[0] == code


def test_shared_resources_of_a_pool_are_not_exceeded(tmp_path: Path) -> None:
    for slots, code in (("2", 0), ("1", 3)):
        pool = cards("n", 2, sharedResourcesConsumed={"slots": 1})
        pool["spec"]["sharedResources"] = [{"name": "slots", "capacity": slots}]
        two = claim(entry(requests={"devices": 2}))
        assert asked(tmp_path, pool, CARD, two)[0] == code


def test_shared_resources_that_are_listed_are_read_and_reported(tmp_path: Path) -> None:
    """Such a file ended in a traceback."""
    pool = cards("n", 1, sharedResourcesConsumed=[{"name": "slots", "capacity": 1}])
    pool["spec"]["sharedResources"] = [{"name": "slots", "capacity": "1"}]
    code, said, _ = asked(tmp_path, pool, CARD, claim(entry()))
    assert code == 0
    assert [line.rpartition(": normalised")[0] for line in said] == [
        "DevicePool/n-cards.spec.devices[0].sharedResourcesConsumed"
    ]


def test_a_pool_with_a_dangling_resource_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    bad = cards("n1", sharedResourcesConsumed={"slices-00": 1})
    code, said, rows = asked(tmp_path, bad, cards("n2"), CARD, claim(entry()))
    assert (code, rows[0][1]) == (0, "n2")
    assert said == [
        "DevicePool/n1-cards.spec.devices[0].sharedResourcesConsumed[slices-00]: refused:"
        " the pool does not publish this shared resource; it has none"
    ]


def test_a_quantity_that_is_compared_with_a_string_is_compared_as_a_quantity(
    tmp_path: Path,
) -> None:
    devices = [
        {"name": speed, "attributes": [{"name": "bandwidth", "quantityValue": speed}]}
        for speed in ("900M", "10G")
    ]
    pool = made("DevicePool", "n-nic", {"nodeName": "n", "driver": "nic", "devices": devices})
    fast = {"definition": {"driver": "nic", "constraints": "device.bandwidth >= '1G'"}}
    one = claim({"name": "n", "allOf": [{"class": "fast"}]})
    code, said, rows = asked(tmp_path, pool, made("DeviceClass", "fast", fast), one)
    assert (code, rows[0][3]) == (0, "n-nic/10G")
    assert [line.partition(": ")[0] for line in said] == [
        "DeviceClass/fast.spec.definition.constraints"
    ]


def test_a_group_class_stands_for_the_classes_with_its_labels(tmp_path: Path) -> None:
    one = claim({"name": "gpu", "allOf": [{"class": "group"}]})
    for value, code in (("gpu", 0), ("nic", 3)):
        group = made("DeviceClass", "group", {"selector": {"matchLabels": {"type": value}}})
        assert asked(tmp_path, cards("n"), CARD, group, one)[0] == code


def test_pods_have_claims_of_their_own_or_share_one(tmp_path: Path) -> None:
    code, said, rows = asked(
        tmp_path,
        cards("n"),
        CARD,
        claim(entry()),
        pod("inline", devices=[{"name": "gpu", "class": "card"}]),
        pod("copy", template={"claimName": "claim"}),
        pod("one", claimName="claim"),
        pod("two", claimName="claim"),
    )
    assert (code, said) == (0, [])
    assert [row[0] for row in rows] == ["pod/inline", "pod/copy", "claim"]


@pytest.mark.parametrize(
    ("document", "path", "what"),
    [
        (made("DeviceClass", "c", {"driver": "d"}), "DeviceClass/c.spec", "normalised"),
        (made("DeviceClass", "c", {"configs": []}), "DeviceClass/c.spec", "refused"),
        (
            made("DeviceClass", "c", {"definition": {"driver": "d", "constraints": "a =="}}),
            "DeviceClass/c.spec.definition.constraints",
            "refused",
        ),
        (
            made("DevicePool", "n-p", {"nodeName": "n", "sharedResources": {"slots": 2}}),
            "DevicePool/n-p.spec.sharedResources",
            "normalised",
        ),
        (
            made("DevicePool", "node-001-p", {"nodeName": "node-00"}),
            "DevicePool/node-001-p.spec.nodeName",
            "normalised",
        ),
        (
            cards("n", 1, claimResourcesProvided={"memory": "40Gi"}),
            "DevicePool/n-cards.spec.devices[0].claimResourcesProvided",
            "normalised",
        ),
        (
            pod("p", claimName="missing"),
            "Pod/p.spec.deviceClaims",
            "refused",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_deviation_in_an_object_is_reported_by_its_path(
    tmp_path: Path, document: Document, path: str, what: str
) -> None:
    code, said, _ = asked(tmp_path, document, cards("m"), CARD, claim(entry()))
    assert [f"{path}: {what}"] == [":".join(line.split(":")[:2]) for line in said]
    assert code == (64 if document["kind"] == "Pod" else 0), "a pod that is not answered"


@pytest.mark.parametrize(
    ("written_as", "path", "what"),
    [
        (entry(devices=2), ".allOf[0].devices", "normalised"),
        (entry(config=[]), ".allOf[0].config", "normalised"),
        (entry(distinctAttributes=["model"]), ".allOf[0].distinctAttributes", "normalised"),
        (entry(allowShared=True), ".allOf[0].allowShared", "normalised"),
        ({"name": "gpu", "class": "card"}, ".class", "normalised"),
        ({"name": "gpu"}, "", "refused"),
        ({"name": "gpu", "allOf": [{}]}, ".allOf[0].class", "refused"),
        (entry(adminAccess=True), ".allOf[0].adminAccess", "refused"),
        (entry(requests={"devices": "x"}), ".allOf[0].requests[devices]", "refused"),
        (entry(reqests={"devices": 2}), ".allOf[0].reqests", "refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_deviation_in_a_claim_is_reported_by_its_path(
    tmp_path: Path, written_as: Document, path: str, what: str
) -> None:
    ours = pod("other", devices=[{"name": "gpu", "class": "card"}])
    code, said, rows = asked(tmp_path, cards("m"), CARD, claim(written_as), ours)
    assert [f"DeviceClaim/claim.spec.devices[0]{path}: {what}"] == [
        ":".join(line.split(":")[:2]) for line in said
    ]
    assert code == (64 if what == "refused" else 0)
    assert [row[0] for row in rows] == ["pod/other"]


def test_distinct_attributes_of_a_detail_are_kept_apart(tmp_path: Path) -> None:
    one = claim(entry(requests={"devices": 2}, distinctAttributes=["root"]))
    _, _, rows = asked(tmp_path, cards("n", 3), CARD, one)
    assert rows[0][3] == "n-cards/card-0, n-cards/card-1"
    three = claim(entry(requests={"devices": 3}, distinctAttributes=["root"]))
    assert asked(tmp_path, cards("n", 4), CARD, three)[0] == 3
