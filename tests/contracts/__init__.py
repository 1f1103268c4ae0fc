"""Contracts are plain modules. This makes pytest explain their asserts as in tests."""

import pytest

pytest.register_assert_rewrite("tests.contracts.engine_contract")
