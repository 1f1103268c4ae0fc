"""Does TIE pay with real prompts and the real lengths of their answers? Which predictor tells them?

    python -m scripts.bench.scheduling.real_lengths SAMPLES ... --encoder FOLDER

SAMPLES: prompts with several answers each (`lengths.samples`). FOLDER: a small language model,
whose tokens and states the text models read. The first two thirds of a file's prompts are learned
from, or one third where they are too few to train text models. The others are asked by requests for
one answer each, whose length is that of one of the odd answers to the prompt. `--splits` times the
prompts are shuffled first, and models trained with another seed. The tables:

- how lengths vary, within prompts and over them, and which family fits them;
- how well each predictor tells the others' lengths (`lengths.text_model`);
- what each order of waiting requests brings (ORDERS).

| prediction | what it knows of a prompt that is asked |
|---|---|
| text | what `--loss` made of two thirds of the prompts, with the frozen encoder |
| point, rank | the rivals' own predictions, from one answer to each of the same prompts |
| log, mean | what separates `text` from them: the logarithm of one answer, the mean of all |
| history | what the daemon says of a prompt that it has not seen |
| seen | what the daemon says once the even answers have ended |
| half, half_normal, half_free | fits to the even answers: log-t, log-normal, log-t with nu free |
| oracle | the fit to all answers, those to come among them |
| lengths | the length to come |

Orders with seconds in their names, or "daemon", are the daemon's: a score is halved for so many
seconds of waiting, and what has waited for a minute goes first. The others have neither.

Simulated: `--batch` requests at once, each of which gains a token a step; a step always takes 20
ms, prefill takes none, memory never ends. Rates are multiples of what such an engine finishes.
Ratios are paired by seed, with 95 % intervals over the seeds. The last line is JSON. An
interrupted study goes on where it was: runs/scheduling/real_lengths.jsonl.
"""

import argparse
import copy
import hashlib
import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy import stats

from flashedge.config import load_config
from flashedge.files.journal import Journal
from flashedge.scheduling.lengths.distribution import NU, Floats, LogT, compute_figures
from flashedge.scheduling.lengths.history import HistoryPredictor
from flashedge.scheduling.programs.policies import (
    MEASURED_DECAY,
    Decay,
    FirstCome,
    LeastWork,
    Policy,
    Queued,
)
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.lengths.fits import study_families, study_freedom
from scripts.bench.lengths.samples import (
    Samples,
    describe_spread,
    list_parameters,
    measure_repeats,
    read_samples,
)
from scripts.bench.lengths.text_model import (
    DISTRIBUTIONS,
    LOG,
    LOSSES,
    MEAN,
    POINT,
    RANK,
    TextSettings,
    Vectors,
    read_vectors,
    train,
)
from scripts.bench.scheduling.study import OUTPUT, compare_paired, estimate_mean
from scripts.bench.smoke import SMALL_SAMPLES, is_smoke, parse_arguments
from scripts.lab.benchmark.load.timings import Timings
from scripts.lab.statistics import interval, kendall

STEP_S = 0.02
ESCALATE_S = load_config({}).scheduling_escalate_s
BATCH = "batch"
"""The load of all requests at once."""
FIGURES = ("latency", "per_token", "p99")
FITTED_PROMPTS = 164
"""Most prompts that the families are fitted to. Those whose answers are all equally long are left
out."""
MANY = 20
"""Answers to a prompt beyond which families are compared, and fits to fewer with the fit to all."""
PART = 200
"""Texts that are read before a file of their vectors is written."""
MOST_ASKED = 500
"""Prompts of a file that requests ask for. All others are learned from."""
LEAST_PROMPTS = 150
"""Of a file that trains text models."""
SMALL_PROMPTS = 1000
"""Of a file that also trains one from scratch."""
NORMAL_NU = 1e4
"""Degrees of freedom with which a log-t distribution is log-normal to three digits."""
Cell = dict[str, float]


@dataclass(frozen=True, slots=True)
class Escalated:
    """A policy under which a request that waited for a minute goes first, as in the daemon."""

    policy: Policy

    def score(self, now: Queued) -> Floats:
        late = now.waited_s >= ESCALATE_S
        return np.where(late, -1e12 - now.waited_s, self.policy.score(now))


SHORTEST, TIE = LeastWork(), LeastWork(tail_weight=None)
DECAYS = {
    seconds: Decay(factor=MEASURED_DECAY.factor, interval_s=seconds)
    for seconds in sorted({MEASURED_DECAY.interval_s, 5.0, 20.0, 40.0, 60.0})
}
ORDERS: Mapping[str, tuple[str, Policy]] = MappingProxyType(
    {
        "fcfs": ("lengths", FirstCome()),
        "ssjf": (POINT, SHORTEST),
        "ltr": (RANK, SHORTEST),
        "log": (LOG, SHORTEST),
        "mean": (MEAN, SHORTEST),
        "shortest": ("text", SHORTEST),
        "tie": ("text", TIE),
        "tie, 0.1": ("text", LeastWork(tail_weight=0.1)),
        "tie, 0.5": ("text", LeastWork(tail_weight=0.5)),
        "per token": ("text, per token", SHORTEST),
        "history: shortest": ("history", SHORTEST),
        "seen: shortest": ("seen", SHORTEST),
        "seen: tie": ("seen", TIE),
        **{
            f"{source}: shortest, {seconds:g} s": (
                source,
                Escalated(replace(SHORTEST, decay=decay)),
            )
            for source in ("history", "seen")
            for seconds, decay in DECAYS.items()
        },
        "history: tie, daemon": ("history", Escalated(replace(TIE, decay=MEASURED_DECAY))),
        "seen: tie, daemon": ("seen", Escalated(replace(TIE, decay=MEASURED_DECAY))),
        "half: shortest": ("half", SHORTEST),
        "half: tie": ("half", TIE),
        "half: tie, log-normal": ("half_normal", TIE),
        "half: tie, nu free": ("half_free", TIE),
        "oracle: shortest": ("oracle", SHORTEST),
        "oracle: tie": ("oracle", TIE),
        "oracle: lengths": ("lengths", SHORTEST),
    }
)
"""By name: the prediction that an order reads, and the policy. `text, per token` is E[X]/E[1/X] by
the text's prediction: Smith's rule for the mean latency per token, where a request weighs 1 / X."""
RATIOS = (
    *(("shortest", "fcfs"), ("tie", "fcfs"), ("tie", "ssjf"), ("tie", "ltr"), ("tie", "shortest")),
    *(("tie, 0.1", "shortest"), ("tie, 0.5", "shortest"), ("per token", "shortest")),
    *(("history: shortest", "fcfs"), ("seen: shortest", "fcfs"), ("seen: tie", "seen: shortest")),
    *(("shortest", "mean"), ("mean", "ssjf"), ("log", "ssjf"), ("tie", "history: shortest")),
    *(("half: shortest", "fcfs"), ("half: tie", "half: shortest")),
    *(("half: tie, log-normal", "half: tie"), ("half: tie, nu free", "half: tie")),
    *(("oracle: shortest", "fcfs"), ("oracle: tie", "oracle: shortest")),
    ("oracle: lengths", "fcfs"),
    *(
        (f"{source}: shortest, {seconds:g} s", "fcfs")
        for source in ("history", "seen")
        for seconds in DECAYS
    ),
    *(
        (f"{source}: tie, daemon", f"{source}: shortest, {MEASURED_DECAY.interval_s:g} s")
        for source in ("history", "seen")
    ),
)
"""Ours and theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A finished step of the study. Implements `JournalRecord`."""

    file: str
    name: str
    found: Any

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "name": self.name, "found": self.found}


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a prediction says of each prompt that is asked: (prompts,)."""

    expected: Floats
    tail: Floats
    """The mean of the longest tenth."""


# ---------------------------------------------------------------- predictions


def predict_by_history(learned: Sequence[Samples], asked: Sequence[Samples]) -> list[LogT]:
    history = HistoryPredictor()
    for one in learned:
        history.learn(one.finished)
    found = [history.predict(one.request) for one in asked]
    return [one for one in found if one is not None]


def fit_half(samples: Sequence[Samples], family: str) -> list[LogT]:
    """Fit the even answers to each prompt."""
    fits = []
    for one in samples:
        half = one.take(0)
        if family == "half":
            fits.append(half.fitted)
            continue
        logs = np.log(half.lengths)
        data = stats.CensoredData.right_censored(logs, half.is_cut)
        start = {"loc": float(np.median(logs)), "scale": max(0.01, float(logs.std()))}
        if family == "half_normal":
            nu, (mu, sigma) = NORMAL_NU, stats.norm.fit(data, **start)
        else:
            nu, mu, sigma = stats.t.fit(data, NU, **start)
        fits.append(LogT(float(mu), max(0.01, float(sigma)), float(np.clip(nu, 0.5, NORMAL_NU))))
    return fits


def list_fits(figures: Any) -> list[LogT]:
    """figures: (prompts, 2) mu and ln sigma."""
    return [LogT(float(mu), math.exp(float(log_sigma))) for mu, log_sigma in figures]


def estimate_work(fits: Sequence[LogT], limit: int) -> Work:
    found = [compute_figures(one, limit) for one in fits]
    return Work(
        np.array([one.expected for one in found]),
        np.array([one.conditional_value_at_risk for one in found]),
    )


def weigh_by_inverse(fits: Sequence[LogT], limit: int) -> Floats:
    """E[X] / E[1 / X] of each."""
    shares = (np.arange(64) + 0.5) / 64
    lengths = np.minimum(np.array([one.inverse_survival(shares) for one in fits]), limit)
    return np.asarray(lengths.mean(axis=1) * 1.0 / (1 / np.maximum(lengths, 1)).mean(axis=1))


def judge(fits: Sequence[LogT], asked: Sequence[Samples]) -> dict[str, float]:
    """R² of mu and ln sigma against the fits to all answers, Kendall's tau of the expectation with
    the mean length (none if all are expected alike), and the mean relative error of the median,
    with its interval."""
    said, true = (list_parameters(one) for one in (fits, [one.fitted for one in asked]))
    left = [
        1 - float(((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum())
        for a, b in zip(said, true, strict=True)
    ]
    work = estimate_work(fits, asked[0].limit)
    errors = np.abs(np.exp(said[0] - true[0]) - 1).tolist()
    low, high = interval(errors)
    found = {
        "r2_mu": left[0],
        "r2_log_sigma": left[1],
        "tau": judge_order(work.expected, asked),
        "median_error": float(np.mean(errors)),
        "low": low,
        "high": high,
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


def judge_order(scores: Floats, asked: Sequence[Samples]) -> float:
    return kendall(scores.tolist(), [float(one.lengths.mean()) for one in asked])


# ---------------------------------------------------------------- an engine


def serve_in_steps(
    tokens: Floats, arrived_s: Floats, score: Callable[[Any, float], Floats], batch: int
) -> Timings:
    """Serve requests, `batch` of them at once, each until its end. score: of the numbers of those
    that wait, in rising order, at a time. The least goes first, equal ones by arrival."""
    count, now_s, come = len(tokens), 0.0, 0
    waiting: list[int] = []
    ends: list[float] = []
    started_s = np.zeros(count)
    while come < count or waiting:
        while come < count and arrived_s[come] <= now_s:
            waiting.append(come)
            come += 1
        if waiting and len(ends) < batch:
            first = waiting.pop(int(np.argmin(score(np.array(waiting), now_s))))
            started_s[first] = now_s
            heapq.heappush(ends, now_s + STEP_S * float(tokens[first]))
        elif come < count and (len(ends) < batch or arrived_s[come] < ends[0]):
            now_s = float(arrived_s[come])
        else:
            now_s = heapq.heappop(ends)
        while ends and ends[0] <= now_s:
            heapq.heappop(ends)
    waits_s = started_s - arrived_s
    return Timings(
        arrived_s, waits_s, waits_s + STEP_S, waits_s + STEP_S * tokens, tokens.astype(np.int64)
    )


def measure_orders(
    asked: Sequence[Samples],
    said: Mapping[str, Work],
    rates: Sequence[float],
    requests: int,
    batch: int,
    seed: int,
) -> dict[str, dict[str, Cell]]:
    """Figures by load and order of as many requests for answers to the prompts `asked`."""
    draw = np.random.default_rng(seed)
    at = draw.integers(len(asked), size=requests)
    tokens = np.array([float(draw.choice(asked[i].take(1).tokens)) for i in at])
    gaps = np.cumsum(draw.exponential(1.0, requests))
    capacity = batch / (STEP_S * tokens.mean())
    known = {name: Work(work.expected[at], work.tail[at]) for name, work in said.items()}
    known["lengths"] = Work(tokens, tokens)
    found: dict[str, dict[str, Cell]] = {}
    for load in (*rates, math.inf):
        arrived_s = gaps / (load * capacity)
        name = BATCH if load == math.inf else f"{load:g}"
        for order, (source, policy) in ORDERS.items():
            if source in known:
                score = partial(_score, policy, known[source], arrived_s, batch)
                served = serve_in_steps(tokens, arrived_s, score, batch)
                found.setdefault(name, {})[order] = describe(served)
    return found


def _score(
    policy: Policy, work: Work, arrived_s: Floats, batch: int, waiting: Any, now_s: float
) -> Floats:
    return policy.score(
        Queued(
            expected=work.expected[waiting],
            tail=work.tail[waiting],
            waited_s=now_s - arrived_s[waiting],
            waiting=len(waiting),
            max_batch=batch,
        )
    )


def describe(served: Timings) -> Cell:
    ended_s = np.sort(served.finished_s)
    return {
        "latency": float(served.latency_s.mean()),
        "per_token": float(served.per_token_s.mean()),
        "p99": float(np.quantile(served.latency_s, 0.99)),
        "to_30_percent": float(ended_s[int(np.ceil(0.3 * len(served.latency_s))) - 1]),
    }


def summarize(by_seed: Sequence[Mapping[str, Mapping[str, Cell]]]) -> dict[str, Any]:
    """By load, pair of orders and figure: how many times lower ours is."""

    def compare(load: str, ours: str, theirs: str, figure: str) -> dict[str, float]:
        values = (
            {seed: cells[load][name][figure] for seed, cells in enumerate(by_seed)}
            for name in (ours, theirs)
        )
        return compare_paired(*values).to_json()

    first = by_seed[0]
    return {
        load: {
            f"{ours} over {theirs}": {
                figure: compare(load, ours, theirs, figure)
                for figure in (("to_30_percent",) if load == BATCH else FIGURES)
            }
            for ours, theirs in RATIOS
            if ours in first[load] and theirs in first[load]
        }
        for load in first
    }


# ---------------------------------------------------------------- the study


class Study:
    """One file of samples, with what is finished of it."""

    def __init__(self, path: Path, given: argparse.Namespace, kept: Journal[Any, Step]) -> None:
        from transformers import AutoTokenizer  # slow to import

        tokenizer: Any = AutoTokenizer.from_pretrained(given.encoder, local_files_only=True)
        self.given, self.kept, self.split = given, kept, 0
        self.file = f"{path.name} {_hash(path.read_bytes())}"
        samples = read_samples(path, lambda text: tuple(tokenizer(text)["input_ids"]))
        samples = samples[: given.prompts]
        is_large = is_smoke() or len(samples) >= LEAST_PROMPTS
        self.has_texts = is_large and any(samples[0].prompt_ids)
        fits = self.do("fits", lambda: [[one.fitted.mu, one.fitted.sigma] for one in samples])
        for one, (mu, sigma) in zip(samples, fits, strict=True):
            one.remember(LogT(mu, sigma))
        texts = [one.text for one in samples]
        self.read_vectors = cache(partial(_keep_vectors, kept.path.parent, given.encoder, texts))
        self._divide(samples)

    def _divide(self, samples: Sequence[Samples]) -> None:
        middle = len(samples) * (2 if self.has_texts else 1) // 3
        middle = max(middle, len(samples) - MOST_ASKED)
        self.samples, self.learned, self.asked = samples, samples[:middle], samples[middle:]

    def shuffle(self, split: int) -> "Study":
        """The study with other prompts to learn from, and models of another seed."""
        other = copy.copy(self)
        other.split = split
        other._divide(random.Random(split).sample(self.samples, len(self.samples)))
        return other

    def do(self, name: str, work: Callable[[], Any]) -> Any:
        """Do a step unless it is done."""
        name = f"split {self.split}: {name}" if self.split else name
        if (self.file, name) not in self.kept.records:
            print(f"{self.file}: {name}", flush=True)
            self.kept.append(Step(file=self.file, name=name, found=work()))
        return self.kept.records[self.file, name].found

    def run(self) -> dict[str, Any]:
        few = [one for one in self.samples[:FITTED_PROMPTS] if np.ptp(one.lengths)]
        found = {"spread": self.do("spread", lambda: describe_spread(self.samples[:500]))}
        if min(len(one.tokens) for one in few) > MANY:
            found["families"] = self.do("families", lambda: study_families(few))
            found["repeats"] = self.do("repeats", lambda: measure_repeats(few, (5, 8, 10, MANY)))
            nus = (1, 2, 3, NU, 4, 5, 7, 10)
            found["freedom"] = self.do("freedom", lambda: study_freedom(few, nus))
        said, found["predictors"] = self.predict()
        found["orders"] = summarize([self._measure(said, seed) for seed in range(self.given.seeds)])
        if self.has_texts and self.given.splits:
            found["splits"] = self._repeat()
        return found

    def _repeat(self) -> dict[str, Any]:
        """Study other splits, with a load each: means over them, and their intervals."""
        numbers = range(1, self.given.splits + 1)
        good, cells = [], []
        for split in map(self.shuffle, numbers):
            said, judged = split.predict()
            good.append(judged)
            cells.append(split._measure(said, split.split))
        return {
            "tau": {
                name: estimate_mean(
                    {n: one[name]["tau"] for n, one in enumerate(good) if "tau" in one[name]}
                ).to_json()
                for name in good[0]
            },
            "orders": summarize(cells),
        }

    def _measure(self, said: Mapping[str, Work], seed: int) -> dict[str, dict[str, Cell]]:
        given, asked = self.given, self.asked
        return self.do(  # type: ignore[no-any-return]
            f"orders {seed}",
            lambda: measure_orders(asked, said, given.rates, given.requests, given.batch, seed),
        )

    def predict(self) -> tuple[dict[str, Work], dict[str, dict[str, float]]]:
        """Work by prediction, and how good it is. Other splits leave out what no model learns."""
        limit, asked = self.samples[0].limit, self.asked
        fits = {"history": predict_by_history(self.learned, asked)}
        if not self.split:
            seen = [*self.learned, *(one.take(0) for one in asked)]
            fits |= {
                "one for all": [self._fit_all()] * len(asked),
                "seen": predict_by_history(seen, asked),
                **{name: self._fit_half(name) for name in ("half", "half_normal", "half_free")},
                "oracle": [one.fitted for one in asked],
            }
        orders: dict[str, Floats] = {}
        for name, loss, is_frozen in self._list_models():
            figures = np.array(self.do(f"text {name}", partial(self._train, loss, is_frozen)))
            if loss in DISTRIBUTIONS:
                fits[name] = list_fits(figures)
                if is_frozen and loss == self.given.loss:
                    fits["text"] = fits[name]
            else:
                orders[loss] = figures[:, 0]
        good = {name: judge(found, asked) for name, found in fits.items() if name != "text"}
        good |= {name: {"tau": judge_order(scores, asked)} for name, scores in orders.items()}
        work = {name: estimate_work(found, limit) for name, found in fits.items()}
        if "text" in fits:
            orders["text, per token"] = weigh_by_inverse(fits["text"], limit)
        return work | {name: Work(one, one) for name, one in orders.items()}, good

    def _fit_half(self, name: str) -> list[LogT]:
        rows = self.do(name, lambda: [[f.mu, f.sigma, f.nu] for f in fit_half(self.asked, name)])
        return [LogT(*row) for row in rows]

    def _fit_all(self) -> LogT:
        tokens = tuple(token for one in self.learned for token in one.tokens)
        return Samples("", (), tokens, self.samples[0].limit).fitted

    def _list_models(self) -> Iterator[tuple[str, str, bool]]:
        """Name, loss and whether the encoder is frozen. The small one learns by `--loss`."""
        if self.has_texts:
            for loss in LOSSES:
                yield f"frozen, {loss}", loss, True
            is_large = len(self.samples) >= SMALL_PROMPTS or is_smoke()
            if is_large and not self.split:
                yield f"small, {self.given.loss}", self.given.loss, False

    def _train(self, loss: str, is_frozen: bool) -> list[list[float]]:
        settings = TextSettings(loss=loss, seed=self.split)
        if is_smoke():
            settings = replace(settings, epochs=1, head_epochs=1)
        model = train(self.learned, settings, self.read_vectors() if is_frozen else None)
        return [[round(float(one), 4) for one in row] for row in model.predict(self.asked)]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _keep_vectors(folder: Path, encoder: Path, texts: Sequence[str]) -> Vectors:
    """Read the vectors of texts, or what was read before."""
    parts = []
    for start in range(0, len(texts), PART):
        part = texts[start : start + PART]
        path = folder / f"vectors-{_hash(repr((str(encoder), part)).encode())}.npy"
        if not path.exists():
            np.save(path, read_vectors(encoder, part))
        parts.append(np.load(path))
    rows = torch.from_numpy(np.concatenate(parts))
    rows = (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6)
    return dict(zip(texts, rows, strict=True))


def print_tables(file: str, found: Mapping[str, Any]) -> None:
    spread = found["spread"]
    print(format_table(tuple(spread), [tuple(spread.values())], f"{file}: lengths"), end="\n\n")
    if "families" in found:
        rows = [
            (name, "{:.3f} ({:.3f}-{:.3f})".format(*v)) for name, v in found["families"].items()
        ]
        print(format_table(("family", "KS passes"), rows), end="\n\n")
        rows = [(name, *pair) for name, pair in found["repeats"].items()]
        print(format_table(("answers", "error of mu", "of sigma"), rows), end="\n\n")
        print(format_table(("nu", "mean p-value"), list(found["freedom"].items())), end="\n\n")
    names = ("r2_mu", "r2_log_sigma", "tau", "median_error", "low", "high")
    lines = [
        (name, *(f"{one[key]:.3f}" if key in one else "-" for key in names))
        for name, one in found["predictors"].items()
    ]
    print(format_table(("predictor", *names), lines), end="\n\n")
    print_orders("at", found["orders"])
    if "splits" in found:
        taus = [(name, _format(one)) for name, one in found["splits"]["tau"].items()]
        print(format_table(("predictor, other splits", "tau"), taus), end="\n\n")
        print_orders("other splits, at", found["splits"]["orders"])


def print_orders(title: str, found: Mapping[str, Any]) -> None:
    for load, by_pair in found.items():
        columns = (f"{title} {load}", *next(iter(by_pair.values())))
        pairs = [(pair, *map(_format, by.values())) for pair, by in by_pair.items()]
        print(format_table(columns, pairs), end="\n\n")


def _format(found: Mapping[str, float]) -> str:
    return "{value:.3f} ({low:.3f}-{high:.3f})".format(**found)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("samples", type=Path, nargs="+", help="prompts and lengths of answers")
    parser.add_argument("--encoder", type=Path, required=True, help="folder of a small model")
    parser.add_argument("--loss", choices=DISTRIBUTIONS, default=LOSSES[0], help="of `text`")
    parser.add_argument("--prompts", type=int, default=2500, help="most of a file")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.9, 1.5, 3.0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10, help="loads")
    parser.add_argument("--splits", type=int, default=10, help="other choices of prompts")
    small: dict[str, Any] = {"requests": 40, "batch": 4, "seeds": 1, "splits": 1, "rates": [1.5]}
    small |= {"samples": [SMALL_SAMPLES["samples"]], "encoder": SMALL_SAMPLES["tokenizer"]}
    return parse_arguments(parser, **small)


def main() -> None:
    asked = read_arguments()
    torch.set_num_threads(1)
    names = ("loss", "prompts", "rates", "requests", "batch")
    settings = {name: getattr(asked, name) for name in names} | {"encoder": str(asked.encoder)}
    path = (Path() if is_smoke() else OUTPUT) / "real_lengths.jsonl"
    with Journal(
        path, settings, lambda row: Step(**row), key=lambda one: (one.file, one.name)
    ) as kept:
        found = {one.name: Study(one, asked, kept).run() for one in asked.samples}
    for file, one in found.items():
        print_tables(file, one)
    report(**settings, seeds=asked.seeds, files=found)


if __name__ == "__main__":
    main()
