"""What the Exporter of a lasting target has from its target. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.virtualtarget import RESERVED_PREFIX, VirtualTarget

_FOREIGN_LABELS = "jumpstarter.dev/"
"""Labels that an exporter reports about itself when it registers."""

_NOT_PASSED_ON = (RESERVED_PREFIX, "exporterset.jumpstarter.dev/", "kubectl.kubernetes.io/")
"""Annotations of the target that mean nothing, or something else, on an Exporter."""

PASSED_ON = "virtualtarget.jumpstarter.dev/passed-on"
"""Annotation of the Exporter: the keys of the annotations it has from its target."""


def owned_by(exporter: Exporter, target: VirtualTarget) -> bool:
    return any(
        reference.controller and reference.uid == target.metadata.uid
        for reference in exporter.metadata.owner_references
    )


def labels_of(target: VirtualTarget, present: Mapping[str, str]) -> dict[str, str]:
    """The labels of the Exporter: the target's, and what the exporter says about itself."""
    own = {key: value for key, value in present.items() if key.startswith(_FOREIGN_LABELS)}
    return {**own, **target.metadata.labels}


def annotations_of(target: VirtualTarget, present: Mapping[str, str]) -> dict[str, str]:
    """The annotations of the Exporter: the target's, and those that others have set.

    What the target no longer has is removed.
    """
    given = target.metadata.annotations
    passed = {key: value for key, value in given.items() if not key.startswith(_NOT_PASSED_ON)}
    before = {PASSED_ON, *present.get(PASSED_ON, "").split(",")}
    kept = {key: value for key, value in present.items() if key not in before}
    record = {PASSED_ON: ",".join(sorted(passed))} if passed else {}
    return {**kept, **passed, **record}
