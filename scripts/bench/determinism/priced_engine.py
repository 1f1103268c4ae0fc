"""An engine whose steps the product's scheduler decides and a roofline of a card prices.

It serves requests in virtual time, with vLLM's loop of an asynchronous engine: the host works for
the next step while the card computes one. A pass pays for all of its rows, and for a launch without
CUDA graph.

Ref: arXiv 2601.17768 §5.
"""

from collections import deque
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
from scripts.lab.benchmark.devices import OVERHEADS, Overheads, find_card
from scripts.lab.sim.engine_loop import estimate_step_s

_, CARD = find_card("rtx4090")
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
class Host:
    """What the host takes of a step, while the card may compute the one before."""

    overheads: Overheads
    eager_s: float
    """Least of a pass, whose kernels it launches one by one, without CUDA graph."""


ASSUMED = Host(overheads=OVERHEADS["typical"], eager_s=0.005)
MEASURED = Host(overheads=Overheads(step_s=0.0021, sequence_s=13e-6), eager_s=0.020)
"""The first model runner on an H100 with slow cores: its synchronous steps of 1 to 64 sequences,
and a pass without graph of a model of 1.5B (docs/results/card.md, the third run)."""


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
    host: Host = MEASURED
    overlaps: bool = True
    """Whether a shared step is scheduled while the one before is computed, also while a
    deterministic request is open."""
    slowdown: float = 1.0
    """How many times as long a step takes, end to end, by batch-invariant kernels."""

    @property
    def device(self) -> Device:
        return CARD.build_device(Overheads(step_s=0.0, sequence_s=0.0))

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
        runner, passes = TokenRunner(self.error_rate, Random(0)), scheduler.passes
        waiting = deque(sorted(enumerate(jobs), key=lambda one: one[1].arrived_s))
        named: dict[str, Timed] = {}
        now_s, ends_s = 0.0, 0.0
        steps: deque[tuple[Any, Any, float]] = deque()
        """Those in flight, and when the card ends each."""
        while waiting or steps or scheduler.has_requests():
            if not (steps or scheduler.has_requests()):
                now_s = max(now_s, waiting[0][1].arrived_s)
            while waiting and waiting[0][1].arrived_s <= now_s:
                number, job = waiting.popleft()
                named[f"r{number}"] = runner.asked[f"r{number}"] = job
                scheduler.add_request(_build_request(f"r{number}", job))
            passes.in_flight = len(steps)
            waits = passes.must_wait() if self.overlaps else bool(steps and passes.is_open)
            if not waits and scheduler.has_requests():
                output = scheduler.schedule()
                ran, (host_s, card_s) = runner.run(output), self.price(output)
                now_s += host_s
                ends_s = max(now_s, ends_s) + card_s
                steps.append((output, ran, ends_s))
                is_alone = passes.is_open and (passes.is_pass or not self.overlaps)
                if len(steps) < 2 and not is_alone:
                    continue
            output, ran, ended_s = steps.popleft()
            now_s = max(now_s, ended_s)
            for of_client in scheduler.update_from_output(output, ran).values():
                for found in of_client.outputs:
                    named[found.request_id].token_s += [now_s] * len(found.new_token_ids)
        return Served(jobs=list(jobs), makespan_s=now_s, counters=dict(passes.counters))

    def price(self, output: Any) -> tuple[float, float]:
        """Seconds of the host and of the card for a step."""
        counts = output.num_scheduled_tokens
        if not counts:
            return 0.0, 0.0
        shares = [(find_start(output, name), new) for name, new in counts.items()]
        replay_pass = find_pass(output)
        padding = 0 if replay_pass is None else replay_pass.rows - sum(counts.values())
        card_s = estimate_step_s(self.device, self.model, shares, padding)
        overheads = self.host.overheads
        host_s = overheads.step_s + overheads.sequence_s * len(counts)
        if replay_pass is not None:
            card_s = max(card_s, self.host.eager_s)
        return self.slowdown * host_s, self.slowdown * card_s


def _build_request(name: str, job: Timed) -> Any:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=job.max_tokens,
        ignore_eos=True,
        extra_args={ARGS_KEY: {DETERMINISTIC: job.deterministic, "seed": job.seed}},
    )
    return build_request(name, job.prompt, BLOCK, sampling_params=params, pooling_params=None)
