"""Registered with pytest, so that failures of the contract suite show what was compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("bullpen.testing.provisioner_contract")
