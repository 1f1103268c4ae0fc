"""The simulated model: its codec, step lengths, noise and cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import exp

import pytest

from flashedge.scheduling.costs import RTX_4090
from scripts.bench.flashtts.shapes import QWEN25_7B
from scripts.lab.benchmark.lengths import load_trace
from scripts.lab.sim.engine_loop import estimate_step_s
from scripts.lab.sim.model import BLANK_LINE, EOS, NEXT, Reader, SimCodec, SimModel, StepTrace
from tests.support.paths import DATA

TRACE = StepTrace.read(DATA / "step_lengths_small.jsonl")
MODEL = SimModel(TRACE)
TEXTS = SimModel(load_trace("gsm8k"))


def test_text_survives_the_codec() -> None:
    codec = SimCodec()
    text = "Next w5 w1023\n\nTherefore w0 \\boxed{42}"
    ids = codec.encode(text)
    assert codec.decode(ids).split() == text.split()
    assert codec.encode(codec.decode(ids)) == ids
    assert len(codec.encode_chat(TRACE.problem(0).messages)) == TRACE.rows[0].prompt_tokens


@pytest.mark.parametrize("row", [0, 4, 7])
def test_step_lengths_follow_one_row_of_the_trace(row: int) -> None:
    samples = TRACE.rows[row].step_tokens
    prompt, seen = SimCodec().encode_chat(TRACE.problem(row).messages), set()
    for seed in range(40):
        reader, start, step = Reader(MODEL, list(prompt)), 0, 0
        for length in range(1, 4000):
            token, _ = reader.draw(seed)
            reader.read(token)
            if token in (0, 1):
                known = {s[step] for s in samples if len(s) > step}
                assert length - start in {max(n, 3) for n in known} | known
                start, step = length, step + 1
            if token == 0:
                break
        seen.add(step)
        assert step in {len(s) for s in samples}
    assert seen == {len(s) for s in samples}


def test_a_path_of_one_seed_reads_like_a_real_sample() -> None:
    row, codec = TEXTS.trace.rows[3], SimCodec()
    assert codec.encode(TEXTS.trace.problem(3).messages[0].content)[1:] == row.problem
    samples = [[token for step in text for token in step[:-1]] for text in row.texts]
    seen = set()
    for seed in range(60):
        path = draw_path(TEXTS, 3, [seed])
        assert codec.encode(codec.decode(path)) == path[:-1]
        seen.add(samples.index([token for token in path[:-2] if token != BLANK_LINE]))
        assert len(path) in {sum(sample) for sample in row.step_tokens}
    assert seen == set(range(len(samples)))


def test_paths_whose_steps_have_seeds_of_their_own_are_spliced_of_samples() -> None:
    row = TEXTS.trace.rows[3]
    spliced = 0
    for seed in range(20):
        path, step = list(draw_path(TEXTS, 3, range(seed, 100))), 0
        used = []
        while BLANK_LINE in path:
            end = path.index(BLANK_LINE) + 1
            used.append(
                {i for i, t in enumerate(row.texts) if t[step:][:1] == (tuple(path[:end]),)}
            )
            path, step = path[end:], step + 1
        assert all(used)
        spliced += not set.intersection(*used)
    assert spliced > 10


def draw_path(model: SimModel, row: int, seeds: Sequence[int]) -> tuple[int, ...]:
    """A whole path. Each step has the next of the seeds, and those after it the last."""
    reader = Reader(model, SimCodec().encode_chat(model.trace.problem(row).messages))
    path, step = [NEXT], 0
    while path[-1] != EOS:
        token, _ = reader.draw(seeds[min(step, len(seeds) - 1)])
        reader.read(token)
        path.append(token)
        step += token == BLANK_LINE
    return tuple(path[1:])


@pytest.mark.parametrize("row", [0, 7])
def test_the_tokens_of_texts_are_drawn_as_often_as_their_log_probabilities_say(row: int) -> None:
    prompt, chances, drawn = (
        SimCodec().encode_chat(TEXTS.trace.problem(row).messages),
        {},
        Counter(),
    )
    for seed in range(400):
        token, logprob = Reader(TEXTS, prompt).draw(seed)
        chances[token] = exp(logprob)
        drawn[token] += 1
    assert sum(chances.values()) == pytest.approx(1.0)
    for token, chance in chances.items():
        assert drawn[token] / 400 == pytest.approx(chance, abs=0.1)


@pytest.mark.parametrize("model", [MODEL, SimModel(TRACE, common=0.5), TEXTS])
def test_a_reader_can_start_anywhere_in_a_path(model: SimModel) -> None:
    ids = list(SimCodec().encode_chat(model.trace.problem(3).messages))
    reader = Reader(model, ids)
    for _ in range(120):
        assert Reader(model, ids).draw(9) == reader.draw(9)
        token, _ = reader.draw(9)
        reader.read(token)
        ids.append(token)


def test_a_row_may_tell_how_many_of_its_paths_are_right() -> None:
    told = (0.0, 0.3, 1.0, None)
    rows = [replace(row, right=right) for row, right in zip(TRACE.rows, told, strict=False)]
    model = SimModel(StepTrace(tuple(rows)), right=0.6)
    shares = [draw_right_share(model, row) for row in range(len(told))]
    assert shares == pytest.approx([0.0, 0.3, 1.0, 0.6], abs=0.08)


def draw_right_share(model: SimModel, row: int, paths: int = 300) -> float:
    """The share of paths that box their most frequent answer; 0 where every answer is rare."""
    boxed = Counter[int]()
    for seed in range(paths):
        reader = Reader(model, SimCodec().encode_chat(TRACE.problem(row).messages))
        tokens = [EOS + 1]
        while tokens[-1] != EOS:
            token, _ = reader.draw(seed)
            reader.read(token)
            tokens.append(token)
        boxed[tokens[-2]] += 1
    share = boxed.most_common(1)[0][1] / paths
    return share if share > 0.1 else 0.0


def test_common_is_the_share_of_equal_siblings() -> None:
    """Of 400 steps behind the same path, half use the common words and all others differ."""
    model = SimModel(TRACE, common=0.5)
    prompt = list(SimCodec().encode_chat(TRACE.problem(3).messages))
    steps = [draw_step(model, [*prompt, *draw_step(MODEL, prompt, 0)], seed) for seed in range(400)]
    (commonest, times), (_, next_times) = Counter(steps).most_common(2)
    assert commonest == draw_step(model, [*prompt, *draw_step(MODEL, prompt, 0)], None)
    assert 160 <= times <= 240  # four deviations around 200
    assert next_times == 1


def draw_step(model: SimModel, ids: list[int], seed: int | None) -> tuple[int, ...]:
    """The step behind `ids`."""
    reader, step = Reader(model, ids), [NEXT]
    while step[-1] not in (BLANK_LINE, EOS):
        step.append(reader.draw(seed)[0])
        reader.read(step[-1])
    return tuple(step[1:])


def test_tokens_depend_on_seed_position_and_context() -> None:
    prompt = list(SimCodec().encode_chat(TRACE.problem(0).messages))
    plain, moved, mixed = [NEXT, 300, 301], [NEXT, 300, 301, 301], [NEXT, 301, 300]
    paths = ((plain, 1), (plain, 2), (moved, 1), (mixed, 1))
    drawn = {Reader(MODEL, prompt + path).draw(seed)[0] for path, seed in paths}
    assert len(drawn) == 4


def test_decode_is_bound_by_bytes_and_prefill_by_flops() -> None:
    decode_s = estimate_step_s(RTX_4090, QWEN25_7B, [(500, 1)])
    assert decode_s == pytest.approx(0.002 + 2 * 7_615_616_512 / 1008e9, rel=0.01)
    prefill_s = estimate_step_s(RTX_4090, QWEN25_7B, [(0, 4096)])
    attention = 4 * 28 * 28 * 128 * 4096 * 4097 / 2
    assert prefill_s == pytest.approx(0.002 + (2 * 7_615_616_512 * 4096 + attention) / 165e12)
