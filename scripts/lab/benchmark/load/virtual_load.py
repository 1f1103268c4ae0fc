"""A load of chats and searches on a simulated card, in virtual time.

The product's own queue, admission and order of programs serve it. Searches ask problems of the
real step trace and are driven by the product's driver. A chat is one request to the generator, of
log-t length: long, and widely dispersed. Lengths are forecast with the errors of the paper's text
predictor (arXiv 2604.00499 §3.2), and the forecast is known as soon as a program arrives.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from flashedge.config import Config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.http_requests import PlainRequest
from flashedge.events import Event
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.programs.scheduler import PairScheduler, measure_capacity
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import RooflineCurve
from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT
from flashedge.scheduling.programs.program import Caller, Kind
from scripts.lab.benchmark.lengths import MAX_TOKENS, draw_answer_lengths
from scripts.lab.benchmark.load.open_load import BATCH_PRIORITY, Served, run_load
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.timings import ProgramRecord
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.benchmark.virtual_run import Setup, drive, start_pair
from scripts.lab.distributions import (
    EXPLAINED_MU,
    EXPLAINED_SIGMA,
    Dispersion,
    LengthPrior,
    fit_log_t,
    measure_dispersion,
    regress,
)
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.model import StepTrace, TraceRow
from scripts.lab.sim.scheduler import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualLoad:
    """A load on a simulated pair."""

    setup: Setup
    trace: StepTrace
    config: Config
    """Its settings of scheduling, of the queue and of the most runs count."""
    search_rows: Sequence[int]
    """Rows of the trace that searches ask for. A program's problem is an index of these."""
    chat_rows: Sequence[int]
    search: Request
    """The request of a search, but for its problem and seed."""
    forecasts: Mapping[int, LengthDistribution]
    """Predicted length of one output by row."""

    def find_row(self, program: PlannedProgram) -> int:
        rows = self.chat_rows if program.kind is Kind.CHAT else self.search_rows
        return rows[program.problem % len(rows)]


def run_virtual_load(load: VirtualLoad, programs: Sequence[PlannedProgram]) -> list[ProgramRecord]:
    """Run the whole load in virtual time. A program's problem is its row in the trace.

    Raises ConfigError where the KV holds no path.
    """
    return run_virtual(_run(load, programs))


async def _run(load: VirtualLoad, programs: Sequence[PlannedProgram]) -> list[ProgramRecord]:
    records: list[ProgramRecord] = []
    setup, optimizations = load.setup, Optimizations()
    now = asyncio.get_running_loop().time
    pair, manager, engines = await start_pair(setup, load.trace, optimizations)
    generator, verifier = pair.generator, pair.verifier

    async def send_order(keys: Sequence[str]) -> None:
        await asyncio.gather(generator.rank_programs(keys), verifier.rank_programs(keys))

    board = PairScheduler("simulated", load.config, send_order, clock=now)
    capacity = await measure_capacity(
        generator,
        verifier,
        RooflineCurve(device=setup.device, shape=setup.generator),
        max_running=load.config.max_running,
        max_sequences=setup.max_num_seqs,
        is_shared=optimizations.kv_split,
    )
    board.set_capacity(capacity)
    server = VirtualServer(load, engines, board)
    generator.on_step = server.watch_step
    ids = range(1 + max((program.problem for program in programs), default=0))
    await run_load(programs, server.serve, records.append, problem_ids=ids)
    await board.stop()
    if manager is not None:
        await manager.stop()
    return sorted(records, key=lambda record: record.number)


class VirtualServer:
    """Serves programs in virtual time."""

    def __init__(self, load: VirtualLoad, engines: Engines, board: PairScheduler) -> None:
        self._load = load
        self._engines = engines
        self._board = board
        self._began_s: dict[str, float] = {}
        """When the first step with a request of each program began."""
        self._first_s: dict[str, float] = {}
        """When each program had its first token."""

    async def serve(self, program: PlannedProgram) -> Served:
        serve = self._serve_chat if program.kind is Kind.CHAT else self._serve_search
        return await serve(program)

    def watch_step(self, batch: tuple[Slice, ...], took_s: float) -> None:
        """Note after a step of the generator when programs start and have their first token."""
        now_s = asyncio.get_running_loop().time()
        for work in batch:
            key = work.sequence.program
            if key is None or key in self._first_s:
                continue
            if key not in self._began_s:
                self._began_s[key] = now_s - took_s
                self._board.mark_started(key)
            if work.context + work.new == len(work.sequence.tokens):
                self._first_s[key] = now_s

    async def _serve_search(self, program: PlannedProgram) -> Served:
        load, board, run = self._load, self._board, f"run-{program.number}"
        row = load.find_row(program)
        spec = replace(load.search, problem=load.trace.problem(row), seed=program.seed)
        prompt = self._engines.generator.codec.encode_chat(spec.problem.messages)
        board.queue.check_room()
        priority = BATCH_PRIORITY if program.kind is Kind.BATCH else 0
        board.add_run(run, spec, prompt, Caller(client=program.client, priority=priority))

        def note(event: Event) -> None:
            board.note_event(run, event)

        try:
            board.queue.reserve(run)
            board.set_lengths(run, load.forecasts[row])
            async with board.queue.wait_turn(run):
                board.note_start(run)
                started_s = asyncio.get_running_loop().time()
                _, tree = await drive(replace(self._engines, program=run), spec, prompt, note)
        finally:
            board.end_run(run)
        return Served(
            started_s=started_s,
            first_token_s=self._first_s.get(run),
            output_tokens=tree.committed_tokens,
        )

    async def _serve_chat(self, program: PlannedProgram) -> Served:
        load, board, key = self._load, self._board, f"chat-{program.number}"
        row = load.find_row(program)
        generator = self._engines.generator
        prompt = generator.codec.encode_chat(load.trace.problem(row).messages)
        request = ExtendRequest(
            token_ids=prompt,
            seed=program.seed,
            sampling=load.search.sampling,
            max_tokens=CHATS.max_tokens,
            to_boundary=False,
            program=key,
        )
        ask = PlainRequest(
            program=key, client=program.client, prompt_ids=prompt, max_tokens=CHATS.max_tokens
        )
        tokens = 0
        member = board.add_request(ask)
        try:
            board.set_lengths(member, load.forecasts[row])
            async with aclosing(generator.extend(request)) as chunks:
                async for chunk in chunks:
                    board.note_tokens(member, len(chunk.token_ids))
                    tokens += len(chunk.token_ids)
        finally:
            board.leave(member, None)
        return Served(
            started_s=self._began_s.get(key),
            first_token_s=self._first_s.get(key),
            output_tokens=tokens,
        )


CHATS = LengthPrior()

CHAT_ROWS, CHAT_QUANTILES, FITTED_SAMPLES = 64, 256, 100


def build_virtual_load(bench: Bench, config: Config, *, seed: int = 0) -> VirtualLoad:
    """Build a load on the card of `bench`. The configuration says how programs are scheduled.

    Searches have all optimizations that are on by default.
    """
    draw = np.random.default_rng(seed)
    rows, search_rows = list(bench.trace.rows), bench.rows
    samples = [draw_answer_lengths(rows[i], FITTED_SAMPLES, draw) for i in search_rows]
    fitted = [fit_log_t(lengths, lengths >= MAX_TOKENS) for lengths in samples]
    chat_mu, chat_sigma = CHATS.draw_parameters(CHAT_ROWS, draw)
    prompt_tokens = np.minimum(
        CHATS.draw_prompt_tokens(CHAT_ROWS, draw), bench.setup.limits[0] - CHATS.max_tokens - 1
    )
    chat_rows = range(len(rows), len(rows) + CHAT_ROWS)
    shares = (np.arange(CHAT_QUANTILES) + 0.5) / CHAT_QUANTILES
    for chat, tokens in zip(map(LogT, chat_mu, chat_sigma), prompt_tokens, strict=True):
        lengths = np.clip(np.ceil(chat.inverse_survival(1 - shares)), 3, CHATS.max_tokens)
        steps = tuple((int(length),) for length in lengths)  # one step an answer
        rows.append(TraceRow(prompt_tokens=int(tokens), step_tokens=steps))
    forecasts: dict[int, LengthDistribution] = {}
    for numbers, mu, sigma in (
        (search_rows, np.array([f.mu for f in fitted]), np.array([f.sigma for f in fitted])),
        (chat_rows, chat_mu, chat_sigma),
    ):
        mu, logs = (
            regress(values, float(values.mean()), float(values.std()), share, draw)
            for values, share in ((mu, EXPLAINED_MU), (np.log(sigma), EXPLAINED_SIGMA))
        )
        forecasts.update(zip(numbers, map(LogT, mu.tolist(), np.exp(logs).tolist()), strict=True))
    return VirtualLoad(
        setup=bench.setup,
        trace=StepTrace(tuple(rows)),
        config=config,
        search_rows=search_rows,
        chat_rows=chat_rows,
        search=bench.search,
        forecasts=forecasts,
    )


def measure_load_dispersion(load: VirtualLoad) -> dict[str, Dispersion]:
    """How much one output's length varies: a path of a search, an answer of a chat."""
    draw = np.random.default_rng(0)
    kinds = {"search": load.search_rows, "chat": load.chat_rows}
    return {
        kind: measure_dispersion(
            [draw_answer_lengths(load.trace.rows[i], FITTED_SAMPLES, draw) for i in rows],
            CHATS.max_tokens,
        )
        for kind, rows in kinds.items()
    }
