"""Contracts are plain modules: have pytest explain their asserts as it does those of tests."""

import pytest

for _name in ("engine_rig", "generator_contract", "verifier_contract"):
    pytest.register_assert_rewrite(f"tests.contracts.{_name}")
