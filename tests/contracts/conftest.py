"""Contracts are plain modules. This makes pytest explain their asserts as in tests."""

import pytest

for _name in ("engine_rig", "generator_contract", "verifier_contract"):
    pytest.register_assert_rewrite(f"tests.contracts.{_name}")
