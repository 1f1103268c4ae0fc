"""What does the paper's truncation R bring on real engines, and what does it do to results?

    python -m scripts.bench.flashtts.truncation_real [--n 4 16] [--problems 100] [--pair NAME]

In the paper (Algorithm 1, line 19) a duplicate of a kept beam begins with a part of what its
sibling has drafted. The product's drafts are exact: a child begins with its own draft or with
nothing. Here `TruncatingScheduler` does what the paper says where a child has no draft of its own,
and drafts whatever it can, as the product does not. So a path depends on what its sibling had
drafted when it was requested, which is a matter of time. What it copies counts as tokens of the
tree, though nobody computes it twice; so the new tokens are given, too.

Beam searches (4 children) over held-out problems, in three ways: no drafts, exact drafts, and R.
Each problem and seed in every way, one after the other. What is compared needs no quiet machine:
the tokens of the tree for each of the generator's engine steps (on a CPU a step with drafts takes
longer), and whether the answer is right.
Ratios and differences are means over problems with 95 % bootstrap intervals. Each run is written to
--out when it ends, and a run that is there is not repeated. The last line is JSON.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, cast

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request as VllmRequest

from flashedge.engine.vllm.inside.keys import BOUNDARY, CLIENT, read_args
from flashedge.engine.vllm.inside.scheduler import StepBoundaries, _end_at_boundary
from flashedge.engine.vllm.inside.speculation import make_output
from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import rig
from scripts.bench.flashtts.ladder_real import digest_tree
from scripts.bench.flashtts.paper_rules import copy_draft, count_new_tokens
from scripts.bench.flashtts.study import OUTPUT, format_table
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import rotate
from scripts.lab.forced_drafts import EagerScheduler
from scripts.lab.scheduler_pair import SchedulerPair
from scripts.lab.statistics import interval

OFF = Optimizations(speculation=False, token_drafts=False)
DRAFTED = Optimizations(token_drafts=False)
WAYS = {"none": (OFF, ""), "exact": (DRAFTED, ""), "R": (DRAFTED, "0.85")}
"""Switches, and the client of the searches: its name is R."""


class _Boundaries(StepBoundaries):
    """Ends steps whose first tokens stand in the prompt."""

    def append(
        self, request: VllmRequest, token_ids: list[int], append: Callable[..., Any]
    ) -> tuple[list[int], bool]:
        start, name = self._locate_step(request)
        if start >= 0 or request.num_output_tokens:
            return super().append(request, token_ids, append)
        rule, previous, (token,) = self.rules.get(name), request.all_token_ids[-1], token_ids
        _, is_over = append(token_ids)
        if rule is not None and rule.ends_step(previous, token):
            _end_at_boundary(request)
            is_over = True
        return token_ids, is_over


class TruncatingScheduler(EagerScheduler):
    """Lets a request whose client's name is a number R begin with a part of its sibling's draft."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.boundaries = _Boundaries(self, self.drafts.locate_step)
        adopt = self.drafts.adopt
        cast("Any", self.drafts).adopt = lambda asked: adopt(asked) or self._truncate(asked)

    def _truncate(self, asked: VllmRequest) -> VllmRequest | None:
        """Start the request behind these tokens, which stand in its prompt, and report them as
        those of a draft. Returns vLLM's request, None if there are no tokens."""
        params, job = asked.sampling_params, self.drafts._jobs.get(asked.request_id)
        args, path = read_args(params), tuple(asked.prompt_token_ids)
        if job is None or job.beam is None or job.label is None or not args[CLIENT]:
            return None
        board, ratio = self.drafts._board, float(args[CLIENT])
        copied = copy_draft(board, job.beam, path, ratio, args["seed"])
        copied = copied[: min(asked.max_tokens, self.max_model_len - len(path)) - 1]
        if not copied:
            return None
        tokens, logprobs = zip(*copied, strict=True)
        job.request = request = VllmRequest(
            request_id=asked.request_id,
            prompt_token_ids=[*path, *tokens],
            sampling_params=params,
            pooling_params=None,
            client_index=asked.client_index,
            arrival_time=asked.arrival_time,
            priority=asked.priority,
            block_hasher=asked._block_hasher,
        )
        job.start, job.label.adopted, job.beam.adopted = -len(tokens), len(tokens), len(tokens)
        job.set_end(asked.max_tokens, args[BOUNDARY])
        output = make_output(tokens, logprobs, None)
        job.label.put_on(output)
        self.drafts._adopted.append((asked.client_index, output))
        AsyncScheduler.add_request(self, request)
        return request


class TruncatingPair(SchedulerPair):
    scheduler = f"{__spec__.name if __spec__ else __name__}.TruncatingScheduler"


async def measure(asked: argparse.Namespace, known: dict[str, dict[str, Any]]) -> int:
    """Run what is not known yet, until the time is over. Returns the generator's KV blocks that are
    in use at the end, which should be none."""
    end, problems = time.monotonic() + 60 * asked.minutes, read_problems("heldout", asked.problems)
    async with rig(
        512 << 20, asked.pair, kind=TruncatingPair, state_dir=tempfile.mkdtemp()
    ) as here:
        for index, row in enumerate(problems):
            for n in asked.n:
                spec = Request(
                    problem=Problem.from_text(row["problem"]), pair=asked.pair, n=n, seed=index
                )
                for way in rotate(list(WAYS), index):
                    key = f"{asked.pair} {n} {way} {index}"
                    if key in known or time.monotonic() > end:
                        continue
                    switches, client = WAYS[way]
                    run = await here.search(spec, switches, client=client)
                    answer = run.outcome.finish.answer
                    known[key] = {
                        "right": answer is not None
                        and await here.grader.equal(row["answer"], answer),
                        "answer": answer,
                        "tree": digest_tree(run.tree),
                        "steps": run.counters["steps"],
                        "nodes": len(run.tree.nodes) - 1,
                        "tokens": run.tree.committed_tokens,
                        "kept_steps": run.did.kept_steps,
                        "kept_tokens": run.did.kept_tokens,
                        "drawn_tokens": run.did.drawn_tokens,
                        "duplicates": sum(n.status == "duplicate" for n in run.tree.nodes.values()),
                        "seconds": run.seconds,
                        "generate_s": run.generate_s,
                        "goodput": run.goodput,
                    }
                    with asked.out.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps([key, known[key]]) + "\n")
        return (await here.pair.generator.view()).blocks_used


def compare(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Figures of each way over all problems, those of pairs with their intervals."""
    base, found = runs["none"], {}
    for way, each in runs.items():
        pairs = list(zip(each, base, strict=True))
        new = [
            (count_new_tokens(a, b) if way == "R" else a["tokens"]) / a["steps"]
            for a, b in zip(each, runs["exact"], strict=True)
        ]
        ratios = {
            "tokens_a_step": [
                a["tokens"] / a["steps"] / (b["tokens"] / b["steps"]) for a, b in pairs
            ],
            "new_tokens_a_step": [
                own * b["steps"] / b["tokens"] for own, b in zip(new, base, strict=True)
            ],
            "new_over_exact": [
                own * b["steps"] / b["tokens"] for own, b in zip(new, runs["exact"], strict=True)
            ],
            "steps": [a["steps"] / b["steps"] for a, b in pairs],
            "tokens": [a["tokens"] / b["tokens"] for a, b in pairs],
            "right": [float(a["right"]) - float(b["right"]) for a, b in pairs],
            "duplicates": [a["duplicates"] / a["nodes"] for a in each],
            "goodput": [a["goodput"] / b["goodput"] for a, b in pairs],
        }
        found[way] = {
            **{k: [round(x, 3) for x in (mean(v), *interval(v))] for k, v in ratios.items()},
            "accuracy": mean(a["right"] for a in each),
            "drafted": sum(a["kept_steps"] for a in each) / sum(a["nodes"] for a in each),
            "drawn_of_one_kept": sum(a["drawn_tokens"] for a in each)
            / max(1, sum(a["kept_tokens"] for a in each)),
            "same_trees": sum(a["tree"] == b["tree"] for a, b in pairs),
            "same_answers": sum(a["answer"] == b["answer"] for a, b in pairs),
            "problems": len(each),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--pair", default="bundled")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after these")
    parser.add_argument("--out", type=Path, default=OUTPUT / "truncation_real.jsonl")
    asked = parse_arguments(parser, n=[4], problems=1)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    known: dict[str, dict[str, Any]] = dict(map(json.loads, lines))
    blocks_left = asyncio.run(measure(asked, known))
    figures = {}
    for n in asked.n:
        done = [
            index
            for index in range(asked.problems)
            if all(f"{asked.pair} {n} {way} {index}" in known for way in WAYS)
        ]
        if done:
            figures[n] = compare(
                {way: [known[f"{asked.pair} {n} {way} {index}"] for index in done] for way in WAYS}
            )
    rows = [(n, way, *one.values()) for n, ways in figures.items() for way, one in ways.items()]
    if rows:
        print(format_table(("n", "drafts", *next(iter(figures.values()))["none"]), rows))
    report(pair=asked.pair, blocks_left=blocks_left, figures=figures)


if __name__ == "__main__":
    main()
