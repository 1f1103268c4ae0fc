"""The vLLM engines keep the same contract as the simulated ones."""

from tests.contracts.engine_contract import GeneratorContract, OffloadContract, VerifierContract


class TestVllmGenerator(GeneratorContract):
    """`VllmGenerator` keeps the contract of generators."""


class TestVllmOffload(OffloadContract):
    """Both engines offload and restore their KV."""


class TestVllmVerifier(VerifierContract):
    """`VllmVerifier` keeps the contract of verifiers."""
