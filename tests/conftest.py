"""Settings for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Tests must say the same thing every time they run, on a machine of any speed. The search
# for new counterexamples is a run of its own: HYPOTHESIS_PROFILE=search make unit.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=60
)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
