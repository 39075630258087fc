"""Locates the example manifests and programs: in the installed package or the checkout."""

from __future__ import annotations

from pathlib import Path

import bullpen
from bullpen.errors import NotFound

_PACKAGE = Path(bullpen.__file__).parent
_PLACES = (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples")


def example(name: str) -> Path:
    """The example file of that name. Raises ``NotFound``."""
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    raise NotFound(f"the example {name} is missing from this installation; reinstall Bullpen")
