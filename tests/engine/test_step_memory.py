"""What a step of a CPU engine really holds, against the estimate from the model's shape."""

import pytest

from flashedge.config import Config
from flashedge.engine.memory_plan import find_measured
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.checkpoint_shape import read_shape
from flashedge.models.memory.engine_memory import estimate_engine

TOLERANCE = 0.1


@pytest.mark.parametrize("role", ["generator", "verifier"])
async def test_the_estimate_is_within_a_tenth_of_what_a_step_holds(
    pair: VllmPair, role: str
) -> None:
    engine = getattr(pair, role)
    spec = getattr(pair._pair, role)
    shape = read_shape(engine.options.model, spec)
    sequences, samples = engine.options.max_num_seqs, role == "generator"
    expected = estimate_engine(shape, sequences, samples=samples, on_card=False)
    found = await engine.measure_memory()
    assert found["forward"] == pytest.approx(expected.forward, rel=TOLERANCE)
    assert found["logits"] == expected.logits
    sampler = found["logits"] + found["logprobs"] + found["noise"]
    assert sampler == pytest.approx(expected.sampler, rel=TOLERANCE)
    assert found["resident"] > expected.weights + found["forward"]


async def test_a_measurement_on_a_cpu_is_kept_with_the_profile(pair: VllmPair) -> None:
    await pair.measure_memory()
    config: Config = pair._config
    found = find_measured(pair._pair, config, 256)
    assert found is not None
    for engine in found:
        assert not engine.is_estimate
        assert engine.total > engine.weights + engine.step
