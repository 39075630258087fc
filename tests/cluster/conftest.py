"""The stories of a cluster use what the tests with real programs and the contracts use."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("real", "contract"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
