"""Offers filed under their labels: what is found is what a plain search finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.exporters.offers import NEVER, Offer, OfferIndex
from bullpen.core.matcher import Matcher
from bullpen.kit.selectors import parse_labels

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SELECTORS = ["a=1", "a=1,b=2", "a!=1", "b", "!b", "a in (1,2)", "a=9", "b notin (2),a=1"]

MATCHERS = [Matcher(selector=parse_labels(text)) for text in SELECTORS]
MATCHERS += [Matcher(selector=matcher.selector, exporter="e2") for matcher in MATCHERS[:3]]

labels = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"))
offers = st.builds(
    Offer,
    name=st.sampled_from([f"e{n}" for n in range(6)]),
    labels=labels,
    enabled=st.booleans(),
    online=st.booleans(),
    holder=st.sampled_from(["", "l"]),
    ready_at=st.sampled_from([NEVER, *(NOON + timedelta(seconds=n) for n in range(3))]),
)
steps = st.lists(st.one_of(offers, st.sampled_from([f"e{n}" for n in range(6)])), max_size=30)


@given(steps, st.sampled_from(MATCHERS))
def test_it_finds_what_a_plain_search_finds(done: list[Offer | str], matcher: Matcher) -> None:
    stock, plain = OfferIndex(), dict[str, Offer]()
    for step in done:
        if isinstance(step, Offer):
            stock.put(step)
            plain[step.name] = step
        else:
            stock.remove(step)
            plain.pop(step, None)
    in_turn = sorted(plain.values(), key=lambda offer: (offer.ready_at, offer.name))
    found = [offer for offer in in_turn if matcher.matches(offer)]
    enabled = [offer for offer in found if offer.enabled]
    assert list(stock.enabled(matcher)) == enabled
    assert list(stock.free(matcher)) == [offer for offer in enabled if offer.free]
    assert sorted(offer.name for offer in stock) == sorted(plain)
    assert len(stock) == len(plain)


class Counted(dict[str, str]):
    """Labels that count how often they are looked at."""

    looks = 0

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        Counted.looks += 1
        return super().get(key, default)


def test_the_first_free_one_of_ten_thousand_is_found_by_looking_at_one() -> None:
    stock = OfferIndex(
        Offer(name=f"e{n:05}", labels=Counted(board="x" if n % 2 else "y"), holder="")
        for n in range(10_000)
    )
    Counted.looks = 0
    assert next(stock.free(Matcher(selector=parse_labels("board=x")))).name == "e00001"
    assert Counted.looks == 1
