"""``bullpen`` without what decides about claims: the reference for what claims cost a lease.

``python -m bullpen.bench.without_claims up …`` runs the same service, but without the controller
of claims; and its index of leases knows neither claims nor classes.
"""

from __future__ import annotations

import runpy
from typing import Any

from bullpen.app import controllers, lab
from bullpen.controllers.labs import Labs


class _Labs(Labs):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "claims": False})


def main() -> None:
    lab.Labs = _Labs  # type: ignore[attr-defined]
    left = tuple(made for made in controllers.EMBEDDED if made is not controllers.claims)
    assert len(left) == len(controllers.EMBEDDED) - 1, "the controller of claims is left out"
    controllers.EMBEDDED = left
    runpy.run_module("bullpen", run_name="__main__")


if __name__ == "__main__":
    main()
