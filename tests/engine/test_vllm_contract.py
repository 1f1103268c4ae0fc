"""The real engines keep the same contract as the simulated ones."""

import pytest

from tests.contracts.engine_contract import GeneratorContract, OffloadContract, VerifierContract

pytestmark = pytest.mark.asyncio(loop_scope="session")


class TestVllmGenerator(GeneratorContract):
    """engine.vllm.generator.VllmGenerator on vLLM."""


class TestVllmOffload(OffloadContract):
    """Both, their KV away and back."""


class TestVllmVerifier(VerifierContract):
    """engine.vllm.verifier.VllmVerifier on vLLM."""
