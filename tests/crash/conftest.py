"""The crash harness uses what the tests with real programs use."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "real"))
