"""The newest state of objects: each revision is told once, whichever way it comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Foresight, Objects
from bullpen.runtime.informer import Informer, Listener, Newest


def client(revision: int, *, uid: str = "u1") -> Client:
    meta = ObjectMeta(name="a", namespace="lab", uid=uid, resource_version=str(revision))
    return Client(metadata=meta)


class Home:
    """A home whose foresight and view a test moves by hand."""

    def __init__(self) -> None:
        self.seen: Client | None = None
        self.live = True
        self.told: list[tuple[int, int]] = []
        self._foresight: Foresight[Client] | None = None
        self._listener: Listener[Client] | None = None
        view = cast(Informer[Client], self)
        self.newest: Newest[Client] = Newest(cast(Objects, self), Client, view)
        self.newest.listen(lambda old, new: self.told.append((_revision(old), _revision(new))))

    def foresee(self, kind: type[Any], listener: Foresight[Any]) -> None:
        self._foresight = listener

    def listen(self, listener: Listener[Client]) -> None:
        self._listener = listener

    def get(self, namespace: str, name: str) -> Client | None:
        return self.seen

    def holds(self, value: Client) -> bool:
        return value.metadata.labels.get("left-out") is None

    def foresees(self, new: Client | None) -> None:
        assert self._foresight is not None
        self._foresight("lab", "a", new)

    def sees(self, new: Client | None) -> None:
        assert self._listener is not None
        old, self.seen = self.seen, new
        self._listener(old, new)


def _revision(value: Client | None) -> int:
    return int(value.metadata.resource_version) if value else 0


@pytest.fixture
def home() -> Home:
    return Home()


def test_a_foreseen_state_is_the_newest_and_is_told_once(home: Home) -> None:
    home.foresees(client(5))
    assert home.newest.get("lab", "a") == client(5)
    home.sees(client(5))
    assert home.told == [(0, 5)]


def test_a_state_the_view_reaches_late_is_not_told_again(home: Home) -> None:
    home.foresees(client(5))
    home.foresees(client(6))
    home.sees(client(5))
    assert home.newest.get("lab", "a") == client(6)
    home.sees(client(6))
    home.sees(client(7))
    assert home.told == [(0, 5), (5, 6), (6, 7)]


def test_a_creation_that_was_lost_is_taken_back(home: Home) -> None:
    home.foresees(client(5))
    home.foresees(None)
    assert home.newest.get("lab", "a") is None
    assert home.told == [(0, 5), (5, 0)]
    home.sees(client(9))
    assert home.told[-1] == (0, 9)


def test_a_change_that_was_lost_gives_way_to_what_stands(home: Home) -> None:
    home.sees(client(4))
    home.foresees(client(5))
    home.foresees(client(4))
    assert home.newest.get("lab", "a") == client(4)
    assert home.told == [(0, 4), (4, 5), (5, 4)]


def test_what_is_about_to_be_deleted_does_not_come_back_with_an_older_change(home: Home) -> None:
    home.sees(client(4))
    home.foresees(None)
    home.sees(client(5))
    assert home.newest.get("lab", "a") is None
    home.sees(None)
    assert home.told == [(0, 4), (4, 0)]


def test_a_successor_of_the_same_name_outlives_the_end_of_its_predecessor(home: Home) -> None:
    home.sees(client(4))
    home.foresees(None)
    home.foresees(client(8, uid="u2"))
    home.sees(None)
    assert home.newest.get("lab", "a") == client(8, uid="u2")
    home.sees(client(8, uid="u2"))
    assert home.told == [(0, 4), (4, 0), (0, 8)]


def test_what_the_api_shows_gives_way_to_what_is_on_its_way_to_disk(home: Home) -> None:
    assert home.newest.after(client(4)) == client(4)
    home.sees(client(4))
    home.foresees(client(6))
    assert home.newest.after(client(4)) == client(6)
    assert home.newest.after(client(7)) == client(7)
    home.foresees(None)
    assert home.newest.after(client(6)) is None


def test_an_object_that_the_view_leaves_out_is_gone_and_nothing_is_kept_of_it(home: Home) -> None:
    home.sees(client(5))
    meta = replace(client(6).metadata, labels={"left-out": "yes"})
    home.foresees(replace(client(6), metadata=meta))
    assert home.newest.get("lab", "a") is None
    home.sees(None)
    assert home.told == [(0, 5), (5, 0)]
    assert not home.newest._ahead
