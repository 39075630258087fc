"""Go durations: the strings Kubernetes writes for lengths of time.

``parse`` accepts what Go's ``time.ParseDuration`` accepts and ``text`` prints what its
``String`` prints, so ``5m`` reads as five minutes and is written ``5m0s``. Go counts
nanoseconds and ``timedelta`` microseconds: finer values are truncated.
"""

from __future__ import annotations

import re
from datetime import timedelta

NANOSECONDS_MAX = 2**63 - 1
"""Go's limit, about 292 years."""

TEXT_LENGTH_MAX = 100
"""Go accepts any number of zeros; they are useless, but would be stored."""

_UNIT_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,  # the Greek letter as well as the micro sign above
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]+)?(?:(\.)([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def parse(text: str) -> timedelta:
    """The length of time ``text`` stands for; raises ``ValueError`` with a hint."""
    negative, unsigned = text[:1] == "-", text[1:] if text[:1] in ("-", "+") else text
    if unsigned == "0":
        return timedelta(0)
    if len(text) > TEXT_LENGTH_MAX:
        raise ValueError(f"duration {_shown(text)} has more than {TEXT_LENGTH_MAX} characters")
    nanoseconds = sum(_parts(unsigned, text))
    if nanoseconds > NANOSECONDS_MAX + negative:
        raise ValueError(f"duration {_shown(text)} is longer than 292 years")
    whole = timedelta(microseconds=nanoseconds // 1_000)
    return -whole if negative else whole


def _parts(unsigned: str, text: str) -> list[int]:
    parts: list[int] = []
    position = 0
    while position < len(unsigned) or not parts:
        match = _PART.match(unsigned, position)
        if match is None or not (match[1] or match[3]):
            raise ValueError(
                f"duration {_shown(text)} is not a number with a unit, such as 300ms, 1.5h or 1h30m"
            )
        parts.append(_nanoseconds(match[1] or "", match[3] or "", _UNIT_NANOSECONDS[match[4]]))
        position = match.end()
    return parts


def _nanoseconds(whole: str, fraction: str, unit: int) -> int:
    scale: int = 10 ** len(fraction)
    return int(whole or "0") * unit + int(fraction or "0") * unit // scale


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def text(duration: timedelta) -> str:
    """The way Go prints ``duration``: ``1h30m0s``, ``1.5s``, ``300ms``, ``0s``."""
    microseconds = duration // timedelta(microseconds=1)
    sign, rest = ("-", -microseconds) if microseconds < 0 else ("", microseconds)
    if rest == 0:
        return "0s"
    if rest < 1_000:
        return f"{sign}{rest}µs"
    if rest < 1_000_000:
        return f"{sign}{_decimal(rest, 1_000)}ms"
    minutes, rest = divmod(rest, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, 1_000_000)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, unit: int) -> str:
    """``value / unit`` without trailing zeros; ``unit`` is a power of ten."""
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(unit)) - 1).rstrip('0')}"
