"""An engine whose steps the product's scheduler decides and a roofline of a card prices.

It serves requests in virtual time. A pass pays for all of its rows, and for a launch without CUDA
graph.

Ref: arXiv 2601.17768 §5.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import Device
from flashedge.scheduling.determinism import PassShape
from scripts.bench.determinism.token_runner import (
    TokenRunner,
    build_request,
    find_start,
    make_scheduler,
)
from scripts.lab.benchmark.devices import OVERHEADS, find_card
from scripts.lab.sim.engine_loop import estimate_step_s

_, CARD = find_card("rtx4090")
OVERHEAD = "typical"
EAGER_S = 0.005
"""What a pass takes beyond a step with CUDA graph, to launch its kernels one by one (assumed)."""
BLOCK, SEQUENCES = 16, 128
MEMORY_SHARE, OTHER_BYTES = 0.9, 2 << 30


@dataclass(slots=True, kw_only=True)
class Timed:
    """A request, and the virtual times at which its tokens were drawn. Implements `Asked`."""

    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    deterministic: bool = False
    arrived_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    """Seconds since the start of the load, for each token."""

    @property
    def latency_s(self) -> float:
        return self.token_s[-1] - self.arrived_s

    @property
    def first_s(self) -> float:
        return self.token_s[0] - self.arrived_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of a load."""

    jobs: list[Timed]
    makespan_s: float
    counters: dict[str, int]

    @property
    def tokens_per_s(self) -> float:
        return sum(len(job.token_s) for job in self.jobs) / self.makespan_s

    @property
    def recomputed(self) -> float:
        """Candidates that were thrown away, relative to the tokens that count."""
        return self.counters["recomputed_tokens"] / max(1, self.counters["verified_tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEngine:
    """An engine on the card: the product's scheduler, without a model."""

    model: ModelShape
    checkpoint: Path
    """Its context length is all that is read."""
    shape: PassShape
    error_rate: float
    """See `TokenRunner`."""
    context: int
    """Longest sequence, in tokens."""

    @property
    def device(self) -> Device:
        return CARD.build_device(OVERHEADS[OVERHEAD])

    def serve(self, jobs: Sequence[Timed]) -> Served:
        """Serve the requests in virtual time."""
        room = CARD.memory_bytes * MEMORY_SHARE - self.model.weights_bytes - OTHER_BYTES
        scheduler = make_scheduler(
            self.shape,
            self.checkpoint,
            blocks=int(room / self.model.kv_bytes_per_token / BLOCK),
            block_tokens=BLOCK,
            sequences=SEQUENCES,
            max_model_len=self.context,
        )
        runner = TokenRunner(self.error_rate, Random(0))
        waiting = sorted(enumerate(jobs), key=lambda one: one[1].arrived_s)
        named: dict[str, Timed] = {}
        now_s = 0.0
        while waiting or scheduler.has_requests():
            if not scheduler.has_requests():
                now_s = max(now_s, waiting[0][1].arrived_s)
            while waiting and waiting[0][1].arrived_s <= now_s:
                number, job = waiting.pop(0)
                named[f"r{number}"] = runner.asked[f"r{number}"] = job
                scheduler.add_request(_build_request(f"r{number}", job))
            output = scheduler.schedule()
            ran = runner.run(output)
            now_s += self.price(output)
            for of_client in scheduler.update_from_output(output, ran).values():
                for found in of_client.outputs:
                    named[found.request_id].token_s += [now_s] * len(found.new_token_ids)
        return Served(jobs=list(jobs), makespan_s=now_s, counters=dict(scheduler.passes.counters))

    def price(self, output: Any) -> float:
        """Seconds of a step."""
        counts = output.num_scheduled_tokens
        shares = [(find_start(output, name), new) for name, new in counts.items()]
        replay_pass = find_pass(output)
        padding = 0 if replay_pass is None else replay_pass.rows - sum(counts.values())
        step_s = estimate_step_s(self.device, self.model, shares, padding)
        return step_s + (0.0 if replay_pass is None else EAGER_S)


def _build_request(name: str, job: Timed) -> Any:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=job.max_tokens,
        ignore_eos=True,
        extra_args={ARGS_KEY: {DETERMINISTIC: job.deterministic, "seed": job.seed}},
    )
    return build_request(name, job.prompt, BLOCK, sampling_params=params, pooling_params=None)
