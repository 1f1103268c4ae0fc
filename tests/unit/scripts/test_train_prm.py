"""A reward model is trained on solutions whose verdict a word gives away, on a tiny random base."""

import gzip
import itertools
import json
import os
import random
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.errors import CheckpointError, ConfigError
from flashedge.files.problems import LabelledProblem
from flashedge.models.checkpoints import check_checkpoint
from flashedge.types import Problem
from scripts.train_prm import __main__ as command
from scripts.train_prm import draw, trainer
from scripts.train_prm.card import format_card
from scripts.train_prm.draw import Drawer
from scripts.train_prm.judge import build_report, measure_by_place, score_solutions
from scripts.train_prm.model import RewardModel, load_body, load_merged, merge_adapter, save_adapter
from scripts.train_prm.samples import Row, encode_rows, find_step_token, read_samples
from scripts.train_prm.trainer import (
    Plan,
    add_gradients,
    calibrate,
    compute_losses,
    probe_speed,
    train,
)
from tests.support.tiny_checkpoints import make_checkpoint

TOKENS = 200
PLAN = Plan(seconds=1e9, epochs=12, problems=2, seed=0, until=1e18)
TRUTH = "Therefore"
"""The word with which a right solution's second step begins."""


def write_samples(file: Path, first: int, count: int) -> Path:
    """Problems with eight solutions each, of which about half are right."""
    draw = random.Random(first)
    with file.open("w") as out:
        for i in range(first, first + count):
            right = [True, False, *(draw.random() < 0.5 for _ in range(6))]
            texts = [
                f"First, {i} + {k}.\n\n{TRUTH if is_right else 'Then'} 12 + 30.\n\n"
                f"The answer is \\boxed{{{42 if is_right else 41}}}"
                for k, is_right in enumerate(right)
            ]
            row = {"problem": f"Find the sum of {i} numbers", "answer": "42.0", "texts": texts}
            out.write(json.dumps(row) + "\n")
    return file


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 whose vocabulary has a step token. Its own head is not read."""
    return make_checkpoint("qwen_prm", tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def rows(base: Path, tmp_path: Path) -> list[list[Row]]:
    solutions = read_samples(write_samples(tmp_path / "samples.jsonl", 0, 36))
    return [encode_rows(QwenPrm(base, {}), one, TOKENS) for one in solutions]


def build_model(base: Path) -> RewardModel:
    torch.manual_seed(0)
    return RewardModel(load_body(base), rank=4)


def read_weights(model: RewardModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.list_trained().items()}


def test_the_trained_model_tells_unseen_solutions_apart(
    base: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    """The chain as the command goes through it, to the card."""
    model = build_model(base)
    did = train(model, rows[:30], PLAN, tmp_path)
    slope, offset = calibrate(model, rows[30:])
    save_adapter(model, tmp_path / "adapter.safetensors")
    merge_adapter(base, tmp_path / "adapter.safetensors", tmp_path / "model")
    check_checkpoint(tmp_path / "model", family="qwen_prm", tokens=("<extra_0>",))

    unseen = read_samples(write_samples(tmp_path / "unseen.jsonl", 1000, 16))
    merged, journal = load_merged(tmp_path / "model"), tmp_path / "scores.jsonl"
    settings = (merged, QwenPrm(base, {}), unseen, TOKENS, journal)
    assert score_solutions(*settings, until=0.0) is None
    records = score_solutions(*settings, until=1e18)
    assert records is not None
    places = measure_by_place(records)
    assert places["last"]["value"] > 0.8
    assert abs(places["first"]["value"] - 0.5) < 0.2, "nothing gives the verdict away there"

    report = build_report(records)
    assert report["over_majority"]["best of n"]["low"] > 0
    table = report["reliability"]["rows"]
    assert table[0]["true"] < 0.2 < 0.8 < table[-1]["true"]
    made = {"generator": "tiny", "problems": 30, "solutions": 240, "share_right": 0.5, "rank": 4}
    made |= {"calibrated_on": 6, "slope": slope, "offset": offset, "device": "a CPU"}
    card = format_card(report, {**made, **(did or {})})
    assert f"| the last step | {places['last']['value']:.3f}" in card
    assert "12.00 epochs" in card
    cut = replace(records[0], chains=tuple(replace(c, answer=None) for c in records[0].chains))
    assert measure_by_place([*records, cut])["last"] == places["last"], "no chain can be chosen"
    assert measure_by_place([*records, cut], is_answered=False)["last"]["count"] == 17


@pytest.mark.parametrize(("kind", "token"), [("qwen_prm", "<extra_0>"), ("llama_generator", None)])
def test_the_merged_folder_scores_as_the_model_that_was_trained(
    kind: str, token: str | None, tmp_path: Path
) -> None:
    """A Llama becomes a Qwen2 with the same scores."""
    folder = make_checkpoint(kind, tmp_path / "base")
    form = QwenPrm(folder, {"step_token": token or "<|end_of_text|>"})
    (solutions,) = read_samples(write_samples(tmp_path / "samples.jsonl", 3, 1))
    some = encode_rows(form, solutions, TOKENS)
    model = build_model(folder)
    with torch.no_grad():
        for weight in model.list_trained().values():
            weight += 0.05 * torch.randn_like(weight)
        model.rescale(2.0, -1.0)
        expected = model.compute_log_odds(some)
        save_adapter(model, tmp_path / "adapter.safetensors")
        merge_adapter(folder, tmp_path / "adapter.safetensors", tmp_path / "model")
        found = load_merged(tmp_path / "model").compute_log_odds(some)
    check_checkpoint(tmp_path / "model", family="qwen_prm")
    assert torch.cat(expected).std() > 0.1
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=1e-4, rtol=1e-4)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == [
        "Qwen2ForProcessRewardModel"
    ]


def test_rows_are_what_the_daemon_sends(base: Path, tmp_path: Path) -> None:
    """Of a path, however it is cut, and with its own length although others stand beside it."""
    form = QwenPrm(base, {})
    (solutions,) = read_samples(write_samples(tmp_path / "samples.jsonl", 3, 1))
    first, *others = encode_rows(form, solutions, TOKENS)
    ids = list(form.encode_problem(Problem.from_text(solutions.problem)))
    for index, step in enumerate(
        ("First, 3 + 0.", f"{TRUTH} 12 + 30.", "The answer is \\boxed{42}")
    ):
        ids += form.encode_step(step, index)[0]
        assert first.ends[index] == len(ids) - 1
    assert first.ids == tuple(ids)
    assert first.right
    model = build_model(base)
    with torch.no_grad():
        alone, beside = model.compute_log_odds([first]), model.compute_log_odds([*others, first])
    torch.testing.assert_close(beside[-1], alone[0], atol=1e-5, rtol=1e-5)
    (cut,) = encode_rows(form, replace(solutions, texts=solutions.texts[:1], right=(True,)), 35)
    assert (cut.ends, cut.ids) == (first.ends[:1], first.ids[: first.ends[0] + 1])
    (record,) = score_solutions(model, form, [solutions], 25, tmp_path / "scores.jsonl", 1e18) or ()
    assert {chain.scores for chain in record.chains} == {(0.0,)}, "no first step fits"


def test_a_training_in_two_calls_gives_the_same_weights_as_in_one(
    base: Path, rows: list[list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, epochs=2)
    whole, halves = build_model(base), build_model(base)
    (tmp_path / "whole").mkdir()
    did = train(whole, rows, plan, tmp_path / "whole")
    assert did is not None
    assert did["steps"] == 36
    clock = itertools.count()  # a second each time that the training looks at it
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
        assert train(halves, rows, replace(plan, until=20.0), tmp_path) is None
    assert 0 < torch.load(tmp_path / "train.ckpt", weights_only=True)["step"] < 36
    again = build_model(base)
    assert train(again, rows, plan, tmp_path) is not None
    torch.testing.assert_close(read_weights(again), read_weights(whole))


def test_a_batch_in_parts_has_the_gradients_of_the_whole(base: Path, rows: list[list[Row]]) -> None:
    """The parts differ in their rows and lengths, and the last one is smaller."""
    model, batch = build_model(base), [rows[0], rows[1][:3], rows[2], rows[3], rows[4]]
    with torch.no_grad():
        for weight in model.list_trained().values():
            weight += 0.05 * torch.randn_like(weight)
    losses = compute_losses(model, batch)
    sum(losses.values()).backward()
    whole = {name: p.grad.clone() for name, p in model.list_trained().items()}
    model.zero_grad()
    found = add_gradients(model, batch)
    assert found == pytest.approx({name: value.item() for name, value in losses.items()}, rel=1e-4)
    assert max(gradient.abs().max() for gradient in whole.values()) > 1e-3
    for name, p in model.list_trained().items():
        torch.testing.assert_close(p.grad, whole[name], atol=1e-6, rtol=1e-3)


def test_the_probe_tells_the_kernel_and_leaves_no_gradients(
    base: Path, rows: list[list[Row]], capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_model(base)
    probe_speed(model, rows[0])
    said = json.loads(capsys.readouterr().out)
    assert any("scaled_dot_product" in kernel for kernel in said["kernels"])
    assert said["tokens_per_s"] > 0
    assert all(p.grad is None for p in model.parameters())


def test_the_clock_ends_a_training_before_its_epochs_do(
    base: Path, rows: list[list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    did = train(build_model(base), rows, replace(PLAN, seconds=15.0), tmp_path)
    assert did is not None
    assert did["steps"] < 12 * 18
    assert did["seconds"] >= 15.0


def test_the_calibration_undoes_scores_that_are_too_sure(base: Path, rows: list[list[Row]]) -> None:
    """Of a model that knows nothing, the score becomes the share of right solutions."""
    model = build_model(base)
    model.rescale(0.01, 5.0)
    calibrate(model, rows)
    with torch.no_grad():
        odds = torch.cat([o for some in rows for o in model.compute_log_odds(some)])
    share = sum(row.right for some in rows for row in some) / sum(map(len, rows))
    assert odds.sigmoid().mean().item() == pytest.approx(share, abs=0.02)


class FakeEngine:
    """Ends a solution with the prompt's length, and fails at its `fails`-th call."""

    def __init__(self, fails: int) -> None:
        self.calls = 0
        self._fails = fails

    def generate(self, prompts: list[Any], asked: Any, *, use_tqdm: bool) -> list[Any]:
        self.calls += 1
        if self.calls == self._fails:
            raise RuntimeError("stopped")
        lengths = [len(prompt["prompt_token_ids"]) for prompt in prompts]
        ends = [SimpleNamespace(text=f"\\boxed{{{n}}}", token_ids=(1, 2, 3)) for n in lengths]
        return [SimpleNamespace(outputs=[end] * asked.n) for end in ends]


def test_drawing_goes_on_where_it_stopped(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [LabelledProblem(index=i, id=i, text=f"1 + {i}?", answer="2") for i in range(5)]
    problems.append(problems[0])
    monkeypatch.setattr(draw, "GROUP", 2)
    output, engines = tmp_path / "samples.jsonl", []

    def draw_until(fails: int, until: float = 1e18) -> bool:
        engines.append(FakeEngine(fails))
        monkeypatch.setattr(Drawer, "_start_engine", lambda self: engines[-1])
        sizes: dict[str, Any] = {"n": 3, "most_tokens": 50, "seed": 0, "until": until}
        return Drawer(generator=base, form=QwenPrm(base, {}), **sizes).draw(problems, output)

    with pytest.raises(RuntimeError, match="stopped"):
        draw_until(2)
    assert len(output.read_text().splitlines()) == 2
    assert not draw_until(0, until=0.0), "no time is left"
    assert draw_until(0)
    assert draw_until(0)
    assert [engine.calls for engine in engines] == [2, 0, 2, 0]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["problem"] for line in lines] == [f"1 + {i}?" for i in range(5)]
    assert lines[0]["texts"] == lines[4]["texts"]
    assert len(lines[0]["texts"]) == 3


# ---------------------------------------------------------------- bad inputs


def test_samples_that_teach_nothing_or_are_damaged_are_refused(tmp_path: Path) -> None:
    good = {"problem": "1 + 1?", "answer": 2, "texts": ["\\boxed{2}"]}
    bad = {**good, "texts": ["\\boxed{3}", "no box"]}
    for name, lines, told in (
        ("right", [good, good], "is wrong"),
        ("wrong", [bad], "is right"),
        ("empty", [], "is right"),
        ("torn", [good, bad, '{"problem": "1'], "line 3"),
        ("keys", [{"question": "1 + 1?"}], "line 1"),
    ):
        file = tmp_path / f"{name}.jsonl.gz"
        with gzip.open(file, "wt") as out:
            out.writelines(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines)
        with pytest.raises(ConfigError, match=told):
            read_samples(file)
    file.write_bytes(gzip.compress(json.dumps(good).encode())[:-9])
    with pytest.raises(ConfigError, match="can't read"):
        read_samples(file)


def test_a_base_of_another_family_is_refused(tmp_path: Path) -> None:
    phi = make_checkpoint("phi3_generator", tmp_path / "phi")
    with pytest.raises(CheckpointError, match="'phi3'"):
        load_body(phi)
    with pytest.raises(ConfigError, match="has none of"):
        find_step_token(phi)
    with pytest.raises(CheckpointError, match="can't load"):
        load_body(tmp_path)


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Any:
    monkeypatch.setattr(sys, "argv", ["train_prm", *map(str, arguments)])
    try:
        command.main()
    except SystemExit as end:
        return end.code
    return 0


def test_the_command_goes_on_where_it_stopped(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = write_samples(tmp_path / "samples.jsonl", 0, 20)
    unseen = write_samples(tmp_path / "unseen.jsonl", 1000, 8)
    config = tmp_path / "home"
    monkeypatch.setenv("FLASHEDGE_HOME", str(config))
    asked: list[Any] = ["all", "--generator", base, "--work", tmp_path / "work", "--rank", 4]
    asked += ["--samples", samples, "--judge-samples", unseen, "--epochs", 1, "--calibrate", 4]
    with samples.open("a") as file:  # no step of it fits
        file.write(json.dumps({"problem": "Long", "answer": "1", "texts": ["1 + " * 2000]}) + "\n")
    asked += ["--tokens", TOKENS]
    work, minute = tmp_path / "work", ["--train-minutes", 1]
    adapter, merged = work / "adapter.safetensors", work / "model" / "model.safetensors"
    for time_left in ([], minute, ["--train-minutes", 0, "--minutes", 8]):
        assert "type the same command" in run_command(
            monkeypatch, *asked, "--minutes", 0, *time_left
        )
        assert not adapter.exists(), "it would be one of an untrained verifier"
    asked += minute
    assert run_command(monkeypatch, *asked, "--add", "--name", "mine") == 0
    assert '[verifiers.mine]\nsource = "' in capsys.readouterr().out
    pair = tomllib.loads((config / "config" / "models.toml").read_text())["pairs"]["mine"]
    assert pair["max_step_tokens"] < pair["max_path_tokens"] < TOKENS
    assert {name.partition(".")[0] for name in load_file(adapter)} == {"body", "score"}

    def list_times() -> list[int]:
        files = (merged, work / "scores.jsonl", work / "report.json")
        return [file.stat().st_mtime_ns for file in files]

    made = list_times()
    assert run_command(monkeypatch, *asked) == 0
    assert list_times() == made
    os.utime(adapter)
    assert run_command(monkeypatch, *asked) == 0
    assert all(again > first for first, again in zip(made, list_times(), strict=True))
    assert run_command(monkeypatch, *asked, "--rank", 8) == 2
    assert "with rank 4, not 8" in capsys.readouterr().err
    other = write_samples(tmp_path / "other.jsonl", 5, 1)
    for file in ("report.json", "options.json"):
        (work / file).unlink()
    asked[asked.index(unseen)] = other
    assert run_command(monkeypatch, *asked) == 2
    assert "were trained on" in capsys.readouterr().err
