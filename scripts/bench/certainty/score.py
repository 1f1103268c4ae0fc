"""Adds to recorded answers what the models say of them, so that `votes` can judge more rules.

    python -m scripts.bench.certainty.score SAMPLES OUTPUT --pair PAIR [--skip 0] [--limit 40]
        [--add confidences,scores,probes] [--say "Check your answer twice."]

SAMPLES: as for `votes`, with `problem` and whole answers as `texts`; or the OUTPUT of an earlier
call, whose fields stay. Each line of OUTPUT is one of SAMPLES with, for each of its answers,

- `chains`: one answer in place of the recorded ones, to the problem followed by --say, of at most
  --cut tokens
- `confidences`: of each token (`certainty.token_confidence`), by a prefill of the generator
- `scores`: of each step, by the verifier
- `probes`: of the first answer alone, what the generator writes as its answer after every
  `probe_tokens` tokens, with the pair's own suffix: the text, its tokens, and those up to the end
  of the box

and with confidences or probes new `lens`: the text is encoded again, which gives 2 % of the answers
another number of tokens, and is cut where the context ends.

A line is written when its problem is done. Called again, it goes on after the last whole line. The
last line of the output is JSON; `complete` says whether no problem is left.
"""

import argparse
import asyncio
import json
import time
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any

from flashedge.answers.extraction import extract_answer
from flashedge.certainty.token_confidence import measure_confidence
from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest, ScoreRequest
from flashedge.engine.vllm.generator import build_params
from flashedge.engine.vllm.pair import VllmPair
from flashedge.errors import PathOverflow
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.runtime.drive.segments import run_probe
from flashedge.search.base import Probe
from flashedge.search.step_rules import TOP, split_steps
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.tree import ROOT
from flashedge.types import Message, Problem, Sampling, TokenIds
from scripts.bench.certainty.samples import read_samples
from scripts.bench.daemon import report
from scripts.bench.real_pair import open_pair
from scripts.bench.smoke import SMALL, parse_arguments

CHAINS, CONFIDENCES, SCORES, PROBES = "chains", "confidences", "scores", "probes"
Row = dict[str, Any]


class Scorer:
    """Asks the engines of one pair. cut: answers of so many tokens have no end. say: what follows
    a problem to which a chain is drawn."""

    def __init__(self, pair: VllmPair, spec: Pair, cut: int, say: str) -> None:
        self._pair, self._spec, self._cut, self._say = pair, spec, cut, say
        self._codec = pair.generator.codec
        self._chain = ProbedCot(**spec.options.get("probed_cot", {}))
        self.tokens = 0

    async def add(self, row: Row, fields: list[str]) -> Row:
        if CHAINS in fields:
            row = await self._draw(row)
        prompt = self._codec.encode_chat(self._list_messages(row["problem"]))
        room = max(0, self._pair.generator.max_model_len - len(prompt) - 1)
        answers = zip(row["texts"], row["lens"], strict=True)
        paths = [self._encode(text, size)[:room] for text, size in answers]
        found: Row = {}
        if CONFIDENCES in fields or PROBES in fields:
            found["lens"] = list(map(len, paths))
        if CONFIDENCES in fields:
            work = (self.measure_confidences(prompt, path) for path in paths)
            found[CONFIDENCES] = await asyncio.gather(*work)
        if SCORES in fields:
            problem = Problem.from_text(row["problem"])
            found[SCORES] = await asyncio.gather(*(self._score(problem, t) for t in row["texts"]))
        if PROBES in fields:
            found[PROBES] = [await self._probe(prompt, paths[0])]
            found["probe_tokens"] = self._chain.probe_tokens
        return {**row, **found}

    def _list_messages(self, problem: str) -> tuple[Message, ...]:
        system = self._spec.system_prompt
        head = (Message(role="system", content=system),) if system else ()
        return (*head, Message(role="user", content=problem))

    def _encode(self, text: str, size: int) -> TokenIds:
        """An answer's tokens with that which ended it, if one did."""
        end = () if size >= self._cut else (min(self._codec.eos_ids),)
        return (*self._codec.encode(text), *end)

    async def _draw(self, row: Row) -> Row:
        problem = f"{row['problem']} {self._say}".strip()
        request = ExtendRequest(
            token_ids=self._codec.encode_chat(self._list_messages(problem)),
            seed=0,
            sampling=self._spec.sampling,
            max_tokens=self._cut,
            to_boundary=False,
        )
        async with aclosing(self._pair.generator.extend(request)) as stream:
            ids = [token async for chunk in stream for token in chunk.token_ids]
        self.tokens += len(ids)
        known = {"problem": problem, "answer": row["answer"]}
        return {**known, "texts": [self._codec.decode(ids)], "lens": [len(ids)]}

    async def measure_confidences(self, prompt: TokenIds, path: TokenIds) -> list[float]:
        """(len(path),) A prompt's log-probabilities are those of the distribution before each
        token: first of the token itself, then of the TOP likeliest."""
        from vllm.inputs import tokens_input

        if not path:
            return []
        ids, generator = (*prompt, *path), self._pair.generator
        request = ExtendRequest(
            token_ids=ids, seed=0, sampling=Sampling(), max_tokens=1, to_boundary=False
        )
        asked: Row = {"prompt_logprobs": TOP, "flat_logprobs": True}
        params = build_params(request, self._codec, generator.max_model_len, **asked)
        name, rows = f"score-{id(path)}", None
        with generator.process.open_request(name) as llm:
            async for output in llm.generate(tokens_input(list(ids)), params, name):
                rows = output.prompt_logprobs or rows
        assert rows is not None, "they come with the first output"
        ends = zip(rows.start_indices, rows.end_indices, strict=True)
        likeliest = (
            rows.logprobs[start + 1 : end] for start, end in islice(ends, len(prompt), None)
        )
        self.tokens += len(ids)
        return [round(measure_confidence(each), 3) for each in likeliest]

    async def _score(self, problem: Problem, text: str) -> list[float]:
        """0 for an answer beyond the verifier's context, as in a search."""
        request = ScoreRequest(problem=problem, steps=split_steps(text))
        try:
            found = await self._pair.verifier.score(request)
        except PathOverflow:
            return [0.0]
        self.tokens += found.tokens
        return [round(score, 6) for score in found.scores]

    async def _probe(self, prompt: TokenIds, path: TokenIds) -> list[tuple[str, int, int]]:
        """(num_probes,) as `probes` says; an empty text where no token fits."""
        chain, suffix = self._chain, self._codec.encode(self._chain.suffix)

        async def ask(at: int) -> tuple[str, int, int]:
            ids = (*prompt, *path[:at], *suffix)
            if len(ids) >= self._pair.generator.max_model_len:
                return "", 0, 0
            probe = Probe(
                node=ROOT,
                seed=at,
                suffix=chain.suffix,
                max_tokens=chain.max_probe_tokens,
                tail_tokens=chain.tail_tokens,
            )
            request = ExtendRequest(
                token_ids=ids,
                seed=probe.seed,
                sampling=self._spec.sampling,
                max_tokens=probe.max_tokens,
                to_boundary=False,
            )
            drawn, text = await run_probe(request, probe, self._pair.generator)
            self.tokens += len(drawn)
            starts = (self._codec.decode(drawn[:size]) for size in range(1, len(drawn)))
            read = (extract_answer(chain.suffix + start) is not None for start in starts)
            closed = next((size for size, is_closed in enumerate(read, 1) if is_closed), len(drawn))
            return text, len(drawn), closed

        asks = range(chain.probe_tokens, len(path), chain.probe_tokens)
        return await asyncio.gather(*map(ask, asks))


def count_whole_lines(path: Path) -> int:
    """Count the lines that are done, and cut off one that is not."""
    if not path.exists():
        return 0
    text = path.read_bytes()
    if whole := text[: text.rfind(b"\n") + 1]:
        path.write_bytes(whole)
        return whole.count(b"\n")
    path.unlink()
    return 0


async def score_all(asked: argparse.Namespace) -> None:
    done = count_whole_lines(asked.output)
    rows = islice(read_samples(asked.samples), asked.skip, None)
    left = list(islice(rows, done, asked.limit))
    began = time.monotonic()
    async with open_pair(asked.pair) as (pair, _):
        scorer = Scorer(pair, find_pair(asked.pair, load_config({})), asked.cut, asked.say)
        started, added = time.monotonic(), 0
        with asked.output.open("a") as file:
            for at in range(0, len(left), asked.at_once):
                if time.monotonic() - started > asked.minutes * 60:
                    break
                batch = left[at : at + asked.at_once]
                scored = await asyncio.gather(*(scorer.add(row, asked.add) for row in batch))
                file.writelines(json.dumps(row) + "\n" for row in scored)
                file.flush()
                added += len(batch)
                print(f"{time.monotonic() - started:7.1f} s  {done + added} problems", flush=True)
        seconds = time.monotonic() - started
    report(
        problems=done + added,
        complete=added == len(left),
        start_s=round(started - began, 1),
        seconds=round(seconds, 1),
        tokens=scorer.tokens,
        tokens_a_second=round(scorer.tokens / seconds, 1) if scorer.tokens else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--add", default=[CONFIDENCES, SCORES], type=lambda s: s.split(","))
    parser.add_argument("--say", default="", help="what follows each problem of `chains`")
    parser.add_argument("--skip", type=int, default=0, help="problems, such as those trained on")
    parser.add_argument("--limit", type=int, help="problems")
    parser.add_argument("--cut", type=int, default=512, help="tokens at which answers were cut")
    parser.add_argument(
        "--at-once", type=int, default=1, help="problems whose answers share a batch"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of the engines, after which no batch begins"
    )
    asyncio.run(
        score_all(
            parse_arguments(
                parser,
                samples=SMALL / "scored_answers.jsonl.gz",
                output=Path("scored.jsonl"),
                pair="bundled",
                skip=0,
                limit=1,
            )
        )
    )


if __name__ == "__main__":
    main()
