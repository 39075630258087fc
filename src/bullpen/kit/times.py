"""Times in Kubernetes' format: RFC 3339, with a zone, converted to UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)

_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse(written: str) -> datetime:
    """Parse a time, in UTC; precision beyond microseconds is truncated.

    Raises ``ValueError``. ISO 8601 has many more notations; Kubernetes accepts none of them, so
    neither do we.
    """
    if not _is_plain(written) and not _RFC3339.fullmatch(written):
        raise ValueError(f"{written[:40]!r} is not a time such as 2026-01-31T12:00:00Z")
    moment = datetime.fromisoformat(written)
    if written[-1] == "Z":
        return moment
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{written!r} lies outside the years 1 to 9999") from None


def _is_plain(text: str) -> bool:
    """Whether ``text`` is a whole second in UTC if it is a time at all.

    That is the common case, and this costs a fraction of the expression above.
    """
    return (
        len(text) == 20
        and text[4] == text[7] == "-"
        and text[5] != "W"  # a week date has the same length
        and text[10] == "T"
        and text[13] == text[16] == ":"
        and text[19] == "Z"
    )


def shifted(moment: datetime, by: timedelta) -> datetime:
    """``moment + by``, or the first or last representable time if the sum is out of range.

    Times and durations come from objects that people write, so their sums must not raise.
    """
    try:
        return moment + by
    except OverflowError:
        return LATEST if by > timedelta(0) else EARLIEST


def is_within(now: datetime, since: datetime, until: datetime) -> bool:
    """Whether ``now`` is in the period from ``since`` up to ``until``.

    It is not if ``since`` lies in the future: that was recorded before the clock was set back.
    """
    return since <= now < until


def text(moment: datetime) -> str:
    """``moment`` in UTC with whole seconds; fractions are truncated."""
    return _utc(moment).isoformat(timespec="seconds")[:19] + "Z"


def micro_text(moment: datetime) -> str:
    """``moment`` in UTC with microseconds, for fields of type MicroTime."""
    return _utc(moment).isoformat(timespec="microseconds")[:26] + "Z"


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
