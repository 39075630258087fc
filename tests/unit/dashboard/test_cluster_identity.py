"""Answers about people in a cluster: how long they count, and without which credentials."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bullpen.cluster import kubeconfig
from bullpen.dashboard.cluster_identity import FRESH, LAST_KNOWN, Answers
from bullpen.errors import Unavailable, Unreachable
from bullpen.kit.clock import VirtualClock

SECOND = timedelta(seconds=1)


async def test_an_answer_counts_for_a_while_and_longer_while_there_is_no_newer_one() -> None:
    clock, asked, away = VirtualClock(), [], False

    async def ask() -> int:
        if away:
            raise Unreachable("away")
        asked.append(clock.now())
        return len(asked)

    answers: Answers[str, int] = Answers(clock)
    assert [await answers.get("q", ask), await answers.get("q", ask)] == [1, 1]
    clock.advance(FRESH)
    assert await answers.get("q", ask) == 2
    away = True
    clock.advance(LAST_KNOWN - SECOND)
    assert await answers.get("q", ask) == 2
    with pytest.raises(Unavailable):
        await answers.get("another", ask)
    clock.advance(SECOND)
    with pytest.raises(Unavailable):
        await answers.get("q", ask)


def test_access_for_others_has_neither_our_token_nor_our_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server takes the certificate of a connection before the token of a request."""
    shown: list[bytes] = []
    monkeypatch.setattr(
        kubeconfig, "show_certificate", lambda context, certificate, key: shown.append(certificate)
    )
    path = tmp_path / "config"
    path.write_text("""
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users:
- name: u
  user: {token: ours, client-certificate-data: YQ==, client-key-data: Yg==}
""")
    ours = kubeconfig.load(path)
    assert ours.credentials == kubeconfig.Token("ours")
    assert shown == [b"a"]
    anonymous = kubeconfig.load(path, anonymous=True)
    assert anonymous.server == ours.server
    assert anonymous.credentials == kubeconfig.Token()
    assert shown == [b"a"]
