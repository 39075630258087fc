"""Kubernetes quantities: ``100m``, ``1Gi``, ``128M``, ``1e3``.

Parsing is exact. Formatting is canonical as in Kubernetes: no fraction, no needless digits,
and the family of suffixes (binary, decimal, exponent) of the input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from enum import Enum

EXPONENT_MAX = 18
DIGITS_MAX = 64
"""Kubernetes holds values up to 2**63-1; anything longer is an error or an attack."""

PATTERN = (
    r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)"
    r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
)

SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$"
"""A quantity of bytes: without sign, exponent and fractional suffixes."""

_PARTS = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(.*)", re.ASCII)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_DECIMAL_EXPONENTS = {suffix: exponent for exponent, suffix in _DECIMAL.items()}
_EXACT = Context(prec=200)
_NANO = Decimal(1).scaleb(-9)


class Family(Enum):
    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount and the family of suffixes of its notation."""

    amount: Decimal
    family: Family = Family.DECIMAL

    def __str__(self) -> str:
        return text(self)

    def whole(self) -> int:
        """The amount as a whole number, rounded up: half a byte needs a byte."""
        return int(self.amount.to_integral_value(ROUND_CEILING, _EXACT))


def parse(written: str | int) -> Quantity:
    """Parse a quantity; raises ``ValueError`` with a hint."""
    source = str(written) if isinstance(written, int) else written
    match = _PARTS.fullmatch(source) if len(source) <= DIGITS_MAX else None
    if match is None:
        raise ValueError(f"quantity {source[:40]!r} is not a number such as 2, 100m, 1.5 or 512Mi")
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _BINARY[1:]:
        return _held(_EXACT.multiply(number, Decimal(1024 ** _BINARY.index(suffix))), Family.BINARY)
    if suffix in _DECIMAL_EXPONENTS:
        return _held(number.scaleb(_DECIMAL_EXPONENTS[suffix], _EXACT), Family.DECIMAL)
    return _held(number.scaleb(_exponent(suffix, source), _EXACT), Family.EXPONENT)


def _exponent(suffix: str, source: str) -> int:
    if not re.fullmatch(r"[eE][+-]?[0-9]{1,4}", suffix, re.ASCII):
        known = ", ".join(s for s in (*_DECIMAL.values(), *_BINARY) if s)
        raise ValueError(f"quantity {source!r} has an unknown suffix {suffix!r}; known are {known}")
    return int(suffix[1:])


def _held(amount: Decimal, family: Family) -> Quantity:
    """``amount`` at Kubernetes' precision: rounded away from zero to multiples of 1n."""
    if abs(amount) > 2**63 - 1:
        raise ValueError(f"a quantity must not be larger than {2**63 - 1}")
    nanos = _EXACT.divide(abs(amount), _NANO).to_integral_value(ROUND_CEILING, _EXACT)
    held = _EXACT.multiply(nanos, _NANO)
    return Quantity(held.copy_sign(amount).normalize(_EXACT) if held else Decimal(0), family)


def text(quantity: Quantity) -> str:
    """The canonical notation of ``quantity``."""
    if quantity.amount == 0:
        return "0"
    if quantity.family is Family.BINARY and _is_binary(quantity.amount):
        return _binary_text(int(quantity.amount))
    mantissa, exponent = _scaled(quantity.amount)
    if quantity.family is Family.EXPONENT:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL[exponent]}"


def _is_binary(amount: Decimal) -> bool:
    # Below 1024 and for fractions, Kubernetes uses decimal suffixes.
    return abs(amount) >= 1024 and amount == amount.to_integral_value(context=_EXACT)


def _binary_text(amount: int) -> str:
    power = 0
    while power < len(_BINARY) - 1 and amount % 1024 == 0:
        amount, power = amount // 1024, power + 1
    return f"{amount}{_BINARY[power]}"


def _scaled(amount: Decimal) -> tuple[int, int]:
    """A whole mantissa and the largest exponent, a multiple of three, that allows it."""
    exponent = EXPONENT_MAX
    while (mantissa := amount.scaleb(-exponent, _EXACT)) % 1:
        exponent -= 3
    return int(mantissa), exponent
