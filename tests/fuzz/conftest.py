"""The targets use what the tests of the router and of the registry use."""

from __future__ import annotations

import sys

import fuzz_run

sys.path += fuzz_run.HELPERS
