"""Builds a load of chats and searches on a simulated card, as a user asks for it.

Searches ask problems of the real step trace. Chats have log-t lengths: long, and widely dispersed.
Both kinds of lengths are forecast with the errors of a predictor (`requests.predictions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flashedge.config import Config
from flashedge.errors import NotFound
from flashedge.optimizations import Optimizations
from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT
from scripts.lab.benchmark.load.virtual_server import VirtualLoad
from scripts.lab.benchmark.requests.dispersion import Dispersion, measure_dispersion
from scripts.lab.benchmark.requests.predictions import LOG_NORMAL_SPREAD, PAPER, Quality, regress
from scripts.lab.benchmark.requests.prior import DEFAULT, Floats, LengthPrior
from scripts.lab.benchmark.requests.prompts import MAX_TOKENS, draw_answer_lengths
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.distributions import LogNormal, Point, fit_log_t
from scripts.lab.sim.trace import StepTrace, TraceRow

CHATS = replace(DEFAULT, mu=5.5, mu_spread=0.6)
"""Long chats, of 245 tokens at the median."""

CHAT_ROWS, CHAT_QUANTILES, FITTED_SAMPLES = 64, 256, 100
FORECASTS = ("log_t", "log_normal", "point", "oracle", "none")
"""What is predicted of a length. log_t, log_normal: its distribution; point: the mean of its
logarithm; oracle: the distribution without an error; none: nothing."""


def build_virtual_load(
    bench: Bench,
    config: Config,
    *,
    chats: LengthPrior = CHATS,
    forecast: str = "log_t",
    quality: Quality = PAPER,
    seed: int = 0,
    optimizations: Optimizations | None = None,
) -> VirtualLoad:
    """Build a load on the card of `bench`. The configuration says how programs are scheduled.

    optimizations: of the searches; None takes all that are on by default. Raises NotFound for an
    unknown forecast.
    """
    if forecast not in FORECASTS:
        known = ", ".join(FORECASTS)
        raise NotFound(f"there is no forecast {forecast!r}", hint=f"known: {known}")
    draw = np.random.default_rng(seed)
    rows, search_rows = list(bench.trace.rows), bench.rows
    samples = [draw_answer_lengths(rows[i], FITTED_SAMPLES, draw) for i in search_rows]
    fitted = [fit_log_t(lengths, lengths >= MAX_TOKENS) for lengths in samples]
    chat_mu, chat_sigma = chats.draw_parameters(CHAT_ROWS, draw)
    prompt_tokens = np.minimum(
        chats.draw_prompt_tokens(CHAT_ROWS, draw), bench.setup.limits[0] - chats.max_tokens - 1
    )
    chat_rows = range(len(rows), len(rows) + CHAT_ROWS)
    rows += [
        _build_chat_row(float(mu), float(sigma), int(tokens), chats)
        for mu, sigma, tokens in zip(chat_mu, chat_sigma, prompt_tokens, strict=True)
    ]
    parts = (
        (search_rows, np.array([f.mu for f in fitted]), np.array([f.sigma for f in fitted])),
        (chat_rows, chat_mu, chat_sigma),
    )
    forecasts: dict[int, LengthDistribution] = {}
    for numbers, mu, sigma in parts:
        forecasts.update(_forecast(numbers, mu, sigma, forecast, quality, draw))
    return VirtualLoad(
        setup=bench.setup,
        trace=StepTrace(tuple(rows)),
        optimizations=optimizations or Optimizations(),
        config=config,
        search_rows=search_rows,
        chat_rows=chat_rows,
        search=bench.search,
        chat_tokens=chats.max_tokens,
        forecasts=forecasts,
    )


def measure_load_dispersion(load: VirtualLoad, seed: int = 0) -> dict[str, Dispersion]:
    """How much one output's length varies: a path of a search, an answer of a chat."""
    draw = np.random.default_rng(seed)
    kinds = {"search": load.search_rows, "chat": load.chat_rows}
    return {
        kind: measure_dispersion(
            [draw_answer_lengths(load.trace.rows[i], FITTED_SAMPLES, draw) for i in rows],
            load.chat_tokens,
        )
        for kind, rows in kinds.items()
    }


def _build_chat_row(mu: float, sigma: float, prompt_tokens: int, chats: LengthPrior) -> TraceRow:
    """Answers of one step each, with the even quantiles of a log-t distribution as lengths."""
    shares = (np.arange(CHAT_QUANTILES) + 0.5) / CHAT_QUANTILES
    lengths = np.clip(
        np.ceil(LogT(mu, sigma, chats.nu).inverse_survival(1 - shares)), 3, chats.max_tokens
    )
    return TraceRow(
        prompt_tokens=prompt_tokens, step_tokens=tuple((int(tokens),) for tokens in lengths)
    )


def _forecast(
    rows: Sequence[int],
    mu: Floats,
    sigma: Floats,
    forecast: str,
    quality: Quality,
    draw: np.random.Generator,
) -> Mapping[int, LengthDistribution]:
    """What is predicted of the outputs of each row."""
    if forecast == "none":
        return {}
    if forecast != "oracle":
        mu = regress(mu, float(mu.mean()), float(mu.std()), quality.mu, draw)
        logs = np.log(sigma)
        logs = regress(logs, float(logs.mean()), float(logs.std()), quality.sigma, draw)
        sigma = np.exp(logs)
    pairs = zip(rows, mu.tolist(), sigma.tolist(), strict=True)
    match forecast:
        case "point":
            return {row: Point(float(np.exp(m))) for row, m, _ in pairs}
        case "log_normal":
            return {row: LogNormal(m, s * LOG_NORMAL_SPREAD) for row, m, s in pairs}
        case _:
            return {row: LogT(m, s) for row, m, s in pairs}
