"""`lengths train|show|eval` on files and on stored runs, without a daemon."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashedge.cli.lengths import train as train_module
from flashedge.config import load_config
from flashedge.learned.settings import EncoderSettings
from flashedge.runtime.lengths.model_folders import find_folder
from flashedge.runtime.records.store import RunStore
from tests.support.cli_rig import Cli, cli_for
from tests.support.length_rig import make_run, store_runs


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Commands whose models are tiny."""
    torch.set_num_threads(1)
    small = EncoderSettings(vocabulary=512, max_tokens=64, width=32, layers=1, heads=2)
    monkeypatch.setattr(train_module, "build_encoder_settings", lambda *_: small)
    return cli_for(tmp_path, monkeypatch, capfd)


def write_file(folder: Path, count: int, first: int = 0) -> str:
    path = folder / f"{first}-{count}.jsonl"
    runs = [make_run(number) for number in range(first, first + count)]
    rows = [
        {
            "prompt": f"{run.request.text.removeprefix('user: ')} {number}",
            "lengths": run.lengths.tokens,
        }
        for number, run in enumerate(runs)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_too_few_prompts_are_refused_with_the_number_that_is_missing(
    cli: Cli, tmp_path: Path
) -> None:
    file = write_file(tmp_path, 150)
    done = cli("lengths", "train", file)
    assert done.code == 2
    assert "150 distinct prompts are too few: it takes 200 to train a model" in done.err
    assert f"add 50 more prompts to {file}" in done.err
    done = cli("lengths", "train")
    assert done.code == 2
    assert "solve 200 more prompts" in done.err
    done = cli("lengths", "eval", write_file(tmp_path, 30))
    assert done.code == 2
    assert "that are held out" in done.err


def test_a_wrong_choice_is_refused_before_anything_is_read(cli: Cli) -> None:
    done = cli("lengths", "train", "none.jsonl", "--objective", "pointt")
    assert done.code == 2
    assert "objective" in done.err
    assert "one of distribution, point, ranking" in done.err


def test_a_model_is_trained_shown_and_measured(cli: Cli, tmp_path: Path) -> None:
    file = write_file(tmp_path, 220)
    folder = find_folder("bundled", "log_t", load_config())
    dry = cli("lengths", "train", file, "--epochs", "6", "--dry-run")
    assert dry.code == 0, dry.err
    assert not folder.exists()
    made = cli("lengths", "train", file, "--epochs", "6", "--json")
    report = json.loads(made.out)
    assert report["outcome"] == "written"
    assert report["saved"] == str(folder)
    errors = report["errors"]
    assert errors["new model"]["log_score"] < errors["constant"]["log_score"]
    assert set(errors) == {"new model", "constant", "history"}

    shown = cli("lengths", "show")
    assert "log_t" in shown.out
    assert "ready" in shown.out
    assert "no run has ended yet" in shown.err
    said = cli("lengths", "show", "step step step so it")
    assert "text, log_t: " in said.out
    assert "tokens at the median" in said.out
    assert "history: nothing is known" in said.out

    measured = json.loads(cli("lengths", "eval", file, "--json").out)
    assert measured["text, log_t"] == errors["new model"]
    table = cli("lengths", "eval", file)
    assert table.out.startswith(f"on {errors['constant']['prompts']} held-out prompts:")
    assert "text, log_t" in table.out


def test_a_better_model_stays_unless_it_is_to_be_replaced(cli: Cli, tmp_path: Path) -> None:
    file = write_file(tmp_path, 220)
    assert cli("lengths", "train", file, "--epochs", "8").code == 0
    folder = find_folder("bundled", "log_t", load_config())
    record = (folder / "model.json").read_text()
    kept = cli("lengths", "train", file, "--epochs", "3")
    assert "the stored model stays" in kept.err
    assert "--replace" in kept.err
    assert kept.code == 2
    assert "stored model" in kept.out
    assert (folder / "model.json").read_text() == record
    assert cli("lengths", "train", file, "--epochs", "3", "--replace").code == 0
    assert (folder / "model.json").read_text() != record


def test_a_model_that_is_no_better_than_a_constant_is_not_written(cli: Cli, tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i}?", "lengths": [100, 120]} for i in range(230)]
    path = tmp_path / "alike.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    done = cli("lengths", "train", str(path), "--epochs", "1", "--objective", "ranking")
    assert done.code == 1
    assert "nothing was written" in done.err
    assert not find_folder("bundled", "ranking", load_config()).exists()


def test_stored_runs_teach_both_predictors(cli: Cli) -> None:
    store = RunStore(load_config().state_dir / "runs.sqlite")
    store_runs(store, 210)
    store.close()
    shown = cli("lengths", "show")
    assert shown.code == 0, shown.err
    assert "read 210 stored runs of bundled" in shown.err
    every = cli("lengths", "show", "--all")
    assert "self_consistency on bundled, prompts of about" in every.out
    hidden = len(every.out.splitlines()) - len(shown.out.splitlines())
    assert f"{hidden} groups of few runs, or like the rest: flashedge lengths show" in shown.err
    kept, rows = (
        {" ".join(line.split()) for line in out.splitlines()} for out in (shown.out, every.out)
    )
    assert kept < rows
    listed = json.loads(cli("lengths", "show", "--json").out)
    assert listed["models"] == []
    assert listed["history"][0]["group"] == "all runs"
    first = make_run(0).request.text.removeprefix("user: ")
    said = cli("lengths", "show", f"{first} 0", "--strategy", "self_consistency")
    assert "1 run of this very prompt" in said.out
    made = cli("lengths", "train", "--epochs", "4", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["errors"]["history"]["predicted"] > 20


def test_a_model_of_another_tokenizer_is_left_out(cli: Cli, tmp_path: Path) -> None:
    file = write_file(tmp_path, 205)
    assert cli("lengths", "train", file, "--epochs", "6").code == 0
    path = find_folder("bundled", "log_t", load_config()) / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer": "another"}))
    assert "none: it reads another tokenizer's tokens" in cli("lengths", "show").out
    measured = cli("lengths", "eval", file)
    assert "left out: the text model log_t" in measured.err
    assert "text, log_t" not in measured.out
    again = cli("lengths", "train", file, "--epochs", "6")  # what does not fit protects nothing
    assert again.code == 0, again.err
    assert "stored model" not in again.out


def test_the_usual_encoder_fits_the_vocabulary(tmp_path: Path) -> None:
    from flashedge.models.registry import find_pair

    config = load_config(environ={"FLASHEDGE_HOME": str(tmp_path)})
    usual = train_module.build_encoder_settings(None, find_pair("bundled", config), config)
    assert usual == replace(EncoderSettings(), vocabulary=1024)
    given = train_module.build_encoder_settings(tmp_path, find_pair("bundled", config), config)
    assert given.checkpoint == str(tmp_path)
