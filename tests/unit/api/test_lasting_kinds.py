"""VirtualDisk, VirtualTarget and VirtualTargetPool refuse what no member could be, by its path."""

from __future__ import annotations

import runpy
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import (
    POOL_NAME_LENGTH_MAX,
    POOL_UID,
    REPLICAS_MAX,
    VirtualTargetPool,
    member_name,
    own_disk_name,
)
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.kit.names import dns_label_problem, dns_subdomain_problem

ROOT = Path(__file__).parents[3]
DIGEST = "sha256:" + "0" * 64


def document(kind: type[Kind], spec: Document, name: str = "x") -> Document:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def disk(**spec: Any) -> Document:
    return document(VirtualDisk, spec)


def target(**spec: Any) -> Document:
    return document(VirtualTarget, {"virtualTargetClassName": "qemu", **spec})


def pool(
    *, disks: Any = None, templates: Any = None, metadata: Any = None, name: str = "x", **spec: Any
) -> Document:
    found: Document = {
        "scaleDownPolicy": "NewestFirst",
        "replicas": 3,
        "template": {
            "metadata": metadata or {},
            "spec": {
                "virtualTargetClassName": "qemu",
                "disks": [{"virtualDisk": "root"}] if disks is None else disks,
            },
        },
        "virtualDiskTemplates": [{"name": "root", "spec": {"size": "1Gi"}}]
        if templates is None
        else templates,
        **spec,
    }
    return document(VirtualTargetPool, found, name)


def causes(new: Document, old: Document | None = None) -> dict[str, str]:
    """Messages by path, of ``new`` as an update of ``old``."""
    resource = RESOURCES.of_kind(new["apiVersion"], new["kind"])
    assert resource is not None
    before = resource.default(deepcopy(old)) if old is not None else None
    after = resource.default(deepcopy(new))
    return {cause.field: cause.message for cause in resource.validate(after, before)}


def reclaim(**fields: Any) -> Document:
    return pool(templates=[{"name": "root", "spec": {"size": "1Gi"}, "reclaim": fields}])


VALID: dict[str, Document] = {
    "a blank disk": disk(size="1Gi"),
    "a disk from a file": disk(source={"image": {"path": "/a.qcow2"}}),
    "a disk from a url": disk(source={"image": {"url": "https://a/b", "digest": DIGEST}}),
    "a larger copy": disk(size="2Gi", source={"virtualDisk": "golden"}),
    "a target": target(),
    "a target with disks": target(disks=[{"virtualDisk": "a"}, {"image": {"path": "/iso"}}]),
    "a pool": pool(),
    "a pool without disks": pool(disks=[], templates=[]),
    "a pool that shares an image": pool(
        disks=[{"virtualDisk": "root"}, {"image": {"path": "/tools.iso", "format": "raw"}}]
    ),
    "a plain Delete": reclaim(onScaleDown="Delete"),
    "Retain with all fields": reclaim(onScaleDown="Retain", keep=2, ttl="1h"),
    "Retain with a ttl": reclaim(onScaleDown="Retain", ttl="1h"),
    "the longest name": pool(name="p" * POOL_NAME_LENGTH_MAX),
    "a percentage": pool(updateStrategy={"maxUnavailable": "25%"}),
}


@pytest.mark.parametrize("given", VALID.values(), ids=VALID)
def test_a_complete_object_is_accepted_and_survives_the_codec(given: Document) -> None:
    assert causes(given) == {}
    resource = RESOURCES.of_kind(given["apiVersion"], given["kind"])
    assert resource is not None
    assert resource.value is not None
    whole = resource.default(given)
    assert codec.encode(codec.decode(resource.value, whole))["spec"] == whole["spec"]


INVALID: dict[str, tuple[Document, str, str]] = {
    "a disk of nothing": (disk(), "spec.size", "needs a size"),
    "a disk of size zero": (disk(size=0), "spec.size", "between 1Mi and 64Ti"),
    "two sources": (
        disk(source={"image": {"path": "/a"}, "virtualDisk": "b"}),
        "spec.source",
        "either an image or a virtualDisk",
    ),
    "a url without a digest": (
        disk(source={"image": {"url": "https://a/b"}}),
        "spec.source.image",
        "a url needs a digest",
    ),
    "a disk twice": (
        target(disks=[{"virtualDisk": "a"}, {"virtualDisk": "a"}]),
        "spec.disks[1].virtualDisk",
        "Duplicate value",
    ),
    "a disk and an image in one": (
        target(disks=[{"virtualDisk": "a", "image": {"path": "/a"}}]),
        "spec.disks[0]",
        "either a virtualDisk or an image",
    ),
    "keep without Retain": (
        reclaim(keep=1, ttl="1h"),
        "spec.virtualDiskTemplates[0].reclaim.keep",
        "keep needs onScaleDown: Retain",
    ),
    "ttl without Retain": (
        reclaim(ttl="1h"),
        "spec.virtualDiskTemplates[0].reclaim.ttl",
        "ttl needs onScaleDown: Retain",
    ),
    "keep without ttl": (
        reclaim(onScaleDown="Retain", keep=1),
        "spec.virtualDiskTemplates[0].reclaim.keep",
        "keep needs a ttl",
    ),
    "a negative ttl": (
        reclaim(onScaleDown="Retain", ttl="-1s"),
        "spec.virtualDiskTemplates[0].reclaim.ttl",
        "must not be negative",
    ),
    "no policy": (pool(scaleDownPolicy=None), "spec.scaleDownPolicy", "Required value"),
    "an unused disk template": (pool(disks=[]), "spec.virtualDiskTemplates", "exactly one disk"),
    "a disk template used twice": (
        pool(disks=[{"virtualDisk": "root"}, {"virtualDisk": "root"}]),
        "spec.virtualDiskTemplates",
        "exactly one disk",
    ),
    "a disk that members would share": (
        pool(disks=[{"virtualDisk": "root"}, {"virtualDisk": "other"}]),
        "spec.template.spec.disks",
        "members cannot share a disk",
    ),
    "a name too long for members": (
        pool(name="p" * (POOL_NAME_LENGTH_MAX + 1)),
        "metadata.name",
        "names of members add up to 11 characters",
    ),
    "a name with dots": (pool(name="a.b"), "metadata.name", "RFC 1123 label"),
    "a label that no member may have": (
        pool(metadata={"labels": {"a": "not valid"}}),
        "spec.template.metadata.labels",
        "not valid",
    ),
    "a label of the controller": (
        pool(metadata={"labels": {POOL_UID: "x"}}),
        "spec.template.metadata.labels",
        "is set by the controller",
    ),
    "annotations too large for a member": (
        pool(metadata={"annotations": {"a": "x" * (256 * 1024 - 512)}}),
        "spec.template.metadata.annotations",
        "Too long",
    ),
    "a disk template of size zero": (
        pool(templates=[{"name": "root", "spec": {"size": 0}}]),
        "spec.virtualDiskTemplates[0].spec.size",
        "between 1Mi and 64Ti",
    ),
    "a blank disk template without a size": (
        pool(templates=[{"name": "root", "spec": {}}]),
        "spec.virtualDiskTemplates[0].spec.size",
        "needs a size",
    ),
    "too many members": (pool(replicas=REPLICAS_MAX + 1), "spec.replicas", str(REPLICAS_MAX)),
    "no unavailable member": (
        pool(updateStrategy={"maxUnavailable": 0}),
        "spec.updateStrategy.maxUnavailable",
        "1",
    ),
    "an unclear percentage": (
        pool(updateStrategy={"maxUnavailable": "0%"}),
        "spec.updateStrategy.maxUnavailable",
        "0%",
    ),
}


@pytest.mark.parametrize(("given", "path", "message"), INVALID.values(), ids=INVALID)
def test_an_impossible_object_is_refused_at_its_path(
    given: Document, path: str, message: str
) -> None:
    if given["spec"].get("scaleDownPolicy", "") is None:
        del given["spec"]["scaleDownPolicy"]
    found = causes(given)
    assert message in found.get(path, ""), found


def test_a_disk_grows_and_never_shrinks() -> None:
    assert causes(disk(size="2Gi"), disk(size="1Gi")) == {}
    assert "never shrinks" in causes(disk(size="1Gi"), disk(size="2Gi"))["spec.size"]
    copy = {"virtualDisk": "golden"}
    assert "never shrinks" in causes(disk(source=copy), disk(size="1Gi", source=copy))["spec.size"]


def test_the_source_of_a_disk_cannot_change_but_that_of_a_template_can() -> None:
    one, other = {"image": {"path": "/one"}}, {"image": {"path": "/other"}}
    assert "spec.source" in causes(disk(source=other), disk(source=one))
    assert "spec.source" in causes(disk(size="1Gi", source=other), disk(size="1Gi"))
    before, after = (
        pool(templates=[{"name": "root", "spec": {"source": source}}]) for source in (one, other)
    )
    assert causes(after, before) == {}


class TestExplicit:
    """Gap 2: lowering the count of an Explicit pool is refused, whichever way it is asked."""

    def test_refuses_a_lower_count_in_the_object_itself(self) -> None:
        before = pool(scaleDownPolicy="Explicit")
        after = pool(scaleDownPolicy="Explicit", replicas=2)
        assert "bullpen scale-down" in causes(after, before)["spec.replicas"]

    def test_refuses_a_lower_count_together_with_another_policy(self) -> None:
        for one, other in (("Explicit", "NewestFirst"), ("OldestFirst", "Explicit")):
            before, after = pool(scaleDownPolicy=one), pool(scaleDownPolicy=other, replicas=0)
            assert (
                "bullpen scale-down virtualtargetpool/NAME"
                in causes(after, before)["spec.replicas"]
            )

    def test_accepts_a_higher_count_and_another_policy(self) -> None:
        before = pool(scaleDownPolicy="Explicit")
        assert causes(pool(scaleDownPolicy="Explicit", replicas=9), before) == {}
        assert causes(pool(scaleDownPolicy="NewestFirst"), before) == {}

    def test_accepts_a_count_lowered_by_as_many_members_as_are_named(self) -> None:
        before = pool(scaleDownPolicy="Explicit")
        named = [{"name": f"x-{n}", "uid": f"u{n}"} for n in (1, 2)]
        lower: Document = {"scaleDownPolicy": "Explicit", "replicas": 1}
        assert causes(pool(removals=named, **lower), before) == {}
        assert "spec.replicas" in causes(pool(removals=named[:1], **lower), before)


def test_names_of_members_and_their_disks_are_legal_at_their_longest() -> None:
    """Gap 13: admission knows the longest name that a member and its disks can get."""
    name = member_name("p" * POOL_NAME_LENGTH_MAX, 10**10 - 1)
    assert dns_label_problem(name) is None
    assert dns_subdomain_problem(own_disk_name(name, "d" * 63)) is None


def test_the_pool_of_the_how_to_is_accepted() -> None:
    page = (ROOT / "docs" / "how-to" / "lasting-pools.md").read_text()
    given = yaml.safe_load(page.split("```yaml runners.yaml")[1].split("```")[0])
    assert causes(given) == {}


def test_the_reference_page_shows_the_schemas() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "kinds"))
    assert written["PAGE"].read_text() == written["page"](), "run make kinds"
