"""Profiling simulated engines: the fits give back the device that they simulate."""

import pytest

from flashedge.engine.probe import GeneratorProbe, VerifierProbe
from flashedge.profiler.measure import DECODE, PREFILL, profile_models
from flashedge.profiler.profile import ModelProfile
from flashedge.scheduling.costs import RTX_4090
from scripts.bench.flashtts.shapes import QWEN25_1_5B, QWEN25_7B
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.model import SimModel, StepTrace, TraceRow
from scripts.lab.sim.pair import simulated_pair

KV_BYTES = 16 << 30


def test_the_fit_of_a_simulated_engine_is_its_device_and_no_kv_comes_from_the_cache() -> None:
    async def work() -> tuple[ModelProfile, ...]:
        generator, verifier = simulated_pair(
            SimModel(StepTrace((TraceRow(prompt_tokens=8, step_tokens=((4000,),)),))),
            QWEN25_1_5B,
            QWEN25_7B,
            kv_bytes=KV_BYTES,
        )
        probes = (
            GeneratorProbe(generator, QWEN25_1_5B, max_sequences=256, kv_bytes=KV_BYTES),
            VerifierProbe(verifier, QWEN25_7B, max_sequences=256, kv_bytes=KV_BYTES),
        )
        for probe in probes:
            probe.max_step_tokens = 2048  # of SimConfig
        return await profile_models(probes, quick=True, on_progress=lambda share, what: None)

    generator, verifier = run_virtual(work())
    decode = generator.fits[DECODE]
    assert decode.bytes_per_s == pytest.approx(RTX_4090.bandwidth, rel=0.05)
    assert decode.overhead_s == pytest.approx(RTX_4090.overhead_s, rel=0.1)
    assert decode.p90_error < 0.05
    for model in (generator, verifier):
        prefill = model.fits[PREFILL]
        assert prefill.flops_per_s == pytest.approx(RTX_4090.flops, rel=0.1)
        assert prefill.median_error < 0.05
    assert all(s.context < 0.1 * (s.context + s.new) for s in verifier.samples if s.new > 100)
    assert len({s.new for s in verifier.samples}) > 3
