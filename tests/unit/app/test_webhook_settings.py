"""Webhooks in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.app import config
from bullpen.core.notifications import EVENTS
from bullpen.errors import BadRequest

HOOK = "- {name: chat, url: 'https://chat.example.com/x', secretRef: lab/key"


def settings(directory: Path, *hooks: str) -> config.Config:
    path = directory / "config.yaml"
    path.write_text("webhooks:\n" + "\n".join(hooks))
    return config.load(path)


def test_a_webhook_is_told_everything_unless_it_says_what(tmp_path: Path) -> None:
    (every,) = settings(tmp_path, HOOK + "}").told()
    assert (every.events, every.namespaces) == (frozenset(EVENTS), frozenset())
    assert every.secret == ("lab", "key")
    (some,) = settings(tmp_path, HOOK + ", events: [lease.ended], namespaces: [lab]}").told()
    assert some.events == {"lease.ended"}
    assert some.namespaces == {"lab"}


@pytest.mark.parametrize(
    ("hooks", "problem"),
    [
        pytest.param((HOOK + ", events: [lease.end]}",), "known are lease.requested", id="event"),
        pytest.param((HOOK + "}", HOOK + "}"), "a name of its own", id="twice"),
        pytest.param(("- {name: chat, url: 'x', secretRef: a/b}",), r"webhooks\[0\].url", id="url"),
        pytest.param(("- {name: chat, url: 'http://x'}",), "secretRef", id="unsigned"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, hooks: tuple[str, ...], problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        settings(tmp_path, *hooks)
