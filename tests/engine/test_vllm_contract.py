"""The vLLM engines keep the same contract as the simulated ones."""

from tests.contracts.engine_contract import GeneratorContract, OffloadContract, VerifierContract


class TestVllm(GeneratorContract, OffloadContract, VerifierContract): ...
