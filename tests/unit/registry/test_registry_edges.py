"""Odd requests: tokens of other versions, an apply as a patch, a Scale with a selector."""

from __future__ import annotations

import base64

import pytest

from bullpen.api.resources import RESOURCES
from bullpen.errors import BadRequest
from bullpen.registry import lists, scale
from bullpen.registry.options import PatchType
from bullpen.registry.patches import patched

SET = RESOURCES.of_kind("virtualtarget.jumpstarter.dev/v1alpha1", "ExporterSet")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"v":"of the future","rv":1,"start":"a"}', id="another version"),
        pytest.param('{"v":"meta.k8s.io/v1","rv":0,"start":"a"}', id="no revision"),
        pytest.param('{"v":"meta.k8s.io/v1","rv":1,"start":""}', id="no key"),
        pytest.param("not JSON", id="something else"),
    ],
)
def test_a_continue_token_that_is_not_ours_is_refused(text: str) -> None:
    token = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    with pytest.raises(BadRequest, match="invalid continue token"):
        lists._resume("core/secrets/", token)


def test_an_apply_is_not_a_patch() -> None:
    assert SET is not None
    with pytest.raises(AssertionError):
        patched(SET, {}, PatchType.APPLY, {})


def test_the_scale_of_a_set_has_its_selector() -> None:
    assert SET is not None
    made = scale.to_scale(
        SET,
        {"metadata": {"name": "a"}, "spec": {}, "status": {"replicas": 2, "selector": "board=a"}},
    )
    assert made["status"] == {"replicas": 2, "selector": "board=a"}
    assert made["spec"] == {"replicas": 0}
