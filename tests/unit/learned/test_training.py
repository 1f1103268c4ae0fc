"""Tiny trainings: each objective learns, the same seed gives the same model, files hold it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
import torch

from flashedge.errors import CheckpointError
from flashedge.learned import files
from flashedge.learned.encoder import CheckpointEncoder, SmallEncoder, cut_middle
from flashedge.learned.files import ModelRecord, load_model, read_record, save_model
from flashedge.learned.model import LengthModel
from flashedge.learned.rank_scale import RankScale
from flashedge.learned.settings import (
    FITTED,
    LOG_NORMAL,
    LOG_T_FREE,
    POINT,
    RANKING,
    EncoderSettings,
    ModelSettings,
    TrainingSettings,
)
from flashedge.learned.training import Epoch, Trained, train
from flashedge.runtime.lengths.accuracy import Accuracy, measure
from flashedge.runtime.lengths.constant import ConstantPredictor
from flashedge.runtime.lengths.text import TextPredictor
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.request import LengthRequest
from tests.support.length_rig import make_runs
from tests.support.tiny_embedder import write_embedder

ENCODER = EncoderSettings(vocabulary=16, max_tokens=32, width=32, layers=1, heads=2, dropout=0.0)
SETTINGS = ModelSettings(encoder=ENCODER, head=(32, 32, 16), dropout=0.0)
TRAINING = TrainingSettings(epochs=12, head_epochs=6, learning_rate=3e-3, batch=16)
RUNS, HELD_OUT = make_runs(range(240)), make_runs(range(10_000, 10_100))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def predictor_of(trained: Trained) -> TextPredictor:
    record = ModelRecord(
        pair="bundled",
        fingerprint="f",
        tokenizer="t",
        settings=trained.model.settings,
        provenance={"num_prompts": 240, "date": "today"},
    )
    return TextPredictor(trained.model, record)


def errors_of(trained: Trained) -> Accuracy:
    return measure(predictor_of(trained), HELD_OUT)


@pytest.fixture(scope="module")
def constant() -> Accuracy:
    predictor = ConstantPredictor()
    for run in RUNS:
        predictor.learn(run)
    return measure(predictor, HELD_OUT)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(RUNS, SETTINGS, TRAINING)


# ---------------------------------------------------------------- learning


def test_it_beats_one_distribution_for_all(trained: Trained, constant: Accuracy) -> None:
    found = errors_of(trained)
    assert found.log_score < constant.log_score - 0.4
    assert found.median_error < 0.5 * constant.median_error
    assert found.tau > 0.7
    assert found.coverage[1] == pytest.approx(0.8, abs=0.12)


def test_both_stages_run_and_the_best_epoch_is_kept(trained: Trained) -> None:
    stages = [epoch.stage for epoch in trained.epochs]
    assert stages == ["all"] * 12 + ["heads"] * 6
    assert [epoch.number for epoch in trained.epochs] == list(range(1, 19))
    best = min(trained.epochs, key=lambda epoch: epoch.validation_loss)
    assert trained.best_epoch == best.number
    assert trained.epochs[0].validation_loss > best.validation_loss


def test_the_encoder_stays_as_it_is_in_the_second_stage() -> None:
    short = replace(TRAINING, epochs=2, head_epochs=0)
    first = train(RUNS[:60], SETTINGS, short)
    both = train(RUNS[:60], SETTINGS, replace(short, head_epochs=3))
    weights, later = first.model.state_dict(), both.model.state_dict()
    same = {name for name in weights if torch.equal(weights[name], later[name])}
    assert all(name in same for name in weights if name.startswith(("encoder.", "norm.")))


@pytest.mark.parametrize(
    ("settings", "training", "kind"),
    [
        (replace(SETTINGS, family=LOG_NORMAL), TRAINING, LogNormal),
        (replace(SETTINGS, family=LOG_T_FREE), TRAINING, LogT),
        (SETTINGS, replace(TRAINING, loss=FITTED), LogT),
    ],
    ids=["log_normal", "log_t_free", "fitted"],
)
def test_other_families_and_the_papers_loss_learn_as_well(
    settings: ModelSettings, training: TrainingSettings, kind: type, constant: Accuracy
) -> None:
    made = train(RUNS, settings, training)
    found = errors_of(made)
    assert found.log_score < constant.log_score - 0.3
    assert found.median_error < 0.6 * constant.median_error
    (one,) = made.model.predict([HELD_OUT[0].request])
    assert isinstance(one, kind)


@pytest.mark.parametrize("objective", [POINT, RANKING])
def test_rivals_learn_the_order_and_are_points(objective: str, constant: Accuracy) -> None:
    made = train(RUNS, replace(SETTINGS, objective=objective), TRAINING)
    found = errors_of(made)
    assert found.tau > 0.7
    assert found.median_error < 0.6 * constant.median_error
    assert isnan(found.log_score)
    assert all(isinstance(one, Point) for one in made.model.predict([HELD_OUT[0].request]))


def test_outputs_that_were_cut_do_not_look_short() -> None:
    cut = make_runs(range(240), max_tokens=200)
    share = sum(sum(run.lengths.is_censored) for run in cut) / sum(
        len(r.lengths.tokens) for r in cut
    )
    found = errors_of(train(cut, SETTINGS, TRAINING))
    assert 0.3 < share < 0.6
    assert found.median_error < 0.3
    assert found.tau > 0.6


def test_the_same_seed_gives_the_same_model() -> None:
    short = replace(TRAINING, epochs=2, head_epochs=1)
    state = torch.get_rng_state()
    first, second = (train(RUNS[:60], SETTINGS, short) for _ in range(2))
    other = train(RUNS[:60], SETTINGS, replace(short, seed=1))
    requests = [run.request for run in HELD_OUT[:5]]
    assert first.model.predict(requests) == second.model.predict(requests)
    assert first.model.predict(requests) != other.model.predict(requests)
    assert torch.equal(torch.get_rng_state(), state)


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="9 prompts can be read; training takes at least 10"):
        train(RUNS[:9], SETTINGS, TRAINING)


def test_each_epoch_is_reported() -> None:
    seen: list[Epoch] = []
    train(RUNS[:40], SETTINGS, replace(TRAINING, epochs=1, head_epochs=1), seen.append)
    assert [epoch.stage for epoch in seen] == ["all", "heads"]


# ---------------------------------------------------------------- prompts


def test_a_prompt_is_predicted_alike_alone_and_among_others(trained: Trained) -> None:
    requests = [run.request for run in HELD_OUT[:12]]
    long = replace(requests[0], prompt_ids=requests[0].prompt_ids * 9)
    together = trained.model.predict([*requests, long])
    for request, found in zip(requests, together, strict=False):
        (alone,) = trained.model.predict([request])
        assert isinstance(alone, LogT)
        assert isinstance(found, LogT)
        assert found.mu == pytest.approx(alone.mu, abs=1e-4)


def test_what_it_cannot_read_it_does_not_predict(trained: Trained) -> None:
    predictor = predictor_of(trained)
    unread = LengthRequest(pair="bundled", text="only text", max_tokens=9)
    foreign = replace(HELD_OUT[0].request, pair="other")
    assert predictor.predict([unread, foreign]) == [None, None]
    assert predictor.predict([unread, HELD_OUT[0].request])[1] is not None
    assert "can't read" in predictor.explain(unread)
    assert "trained on 240 prompts on today" in predictor.explain(HELD_OUT[0].request)
    predictor.learn(HELD_OUT[0])


def test_a_long_prompt_keeps_its_beginning_and_its_end() -> None:
    assert cut_middle(tuple(range(10)), 10) == tuple(range(10))
    assert cut_middle(tuple(range(100)), 8) == (0, 1, 94, 95, 96, 97, 98, 99)
    encoder = SmallEncoder(ENCODER)
    ids = encoder.read(LengthRequest(pair="p", prompt_ids=tuple(range(9000)), max_tokens=9))
    assert len(ids) == 33
    assert max(ids) < 2 + ENCODER.vocabulary


def test_ranks_become_lengths_in_the_same_order() -> None:
    scale = RankScale()
    scale.fit([0.0, 0.0, 1.0, 2.0], [4.0, 5.0, 6.0, 7.0])
    found = [scale.find_log_tokens(score) for score in (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0)]
    assert found == sorted(found)
    assert len(set(found)) == 6
    assert found[1] == pytest.approx(4.0, abs=0.9)
    assert found[4] == pytest.approx(7.0, abs=1e-6)


# ---------------------------------------------------------------- files


def record_of(model: LengthModel) -> ModelRecord:
    return ModelRecord(
        pair="bundled", fingerprint="f", tokenizer="t", settings=model.settings, provenance={"a": 1}
    )


def test_a_model_survives_its_file(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "log_t"
    record = record_of(trained.model)
    assert read_record(folder) is None
    for _ in range(2):  # the second one replaces the first
        save_model(trained.model, record, folder)
    assert read_record(folder) == record
    loaded = load_model(folder, record.settings)
    requests = [run.request for run in HELD_OUT[:9]]
    assert loaded.predict(requests) == trained.model.predict(requests)
    assert [path.name for path in folder.parent.iterdir()] == ["log_t"]


def test_ranks_survive_the_file(tmp_path: Path) -> None:
    made = train(
        RUNS[:60],
        replace(SETTINGS, objective=RANKING),
        replace(TRAINING, epochs=1, head_epochs=1),
    )
    save_model(made.model, record_of(made.model), tmp_path / "m")
    loaded = TextPredictor.load(tmp_path / "m")
    requests = [HELD_OUT[0].request]
    assert loaded.predict(requests) == made.model.predict(requests)


def test_the_earlier_model_stays_if_the_new_one_cannot_be_put_in_place(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replace_folder = tmp_path / "m", Path.replace
    save_model(trained.model, record_of(trained.model), folder)

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".new":
            raise OSError(28, "No space left on device")
        return replace_folder(self, target)

    monkeypatch.setattr(files.Path, "replace", fail)
    with pytest.raises(files.StoreError, match="No space left"):
        save_model(trained.model, record_of(trained.model), folder)
    monkeypatch.undo()
    assert load_model(folder, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_damaged_files_are_named(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with pytest.raises(CheckpointError, match="there is no length model"):
        TextPredictor.load(folder)
    save_model(trained.model, record_of(trained.model), folder)
    weights = folder / files.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="holds no length model"):
        TextPredictor.load(folder)
    described = json.loads((folder / files.RECORD).read_text())
    (folder / files.RECORD).write_text(json.dumps({**described, "version": 99}))
    with pytest.raises(CheckpointError, match="version 99") as caught:
        read_record(folder)
    assert "flashedge lengths train" in str(caught.value.hint)


def test_reading_a_record_imports_no_torch() -> None:
    code = (
        "import sys, flashedge.learned.files, flashedge.runtime.lengths.build\n"
        "import flashedge.runtime.lengths.prediction_queue, flashedge.runtime.lengths.text\n"
        "print({'torch', 'transformers', 'vllm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---------------------------------------------------------------- a pretrained encoder


def test_a_pretrained_encoder_reads_the_text(tmp_path: Path, constant: Accuracy) -> None:
    """A tiny BERT of random weights stands for DeBERTa: the same code loads, trains, saves it."""
    folder = write_embedder(tmp_path / "encoder")
    settings = replace(SETTINGS, encoder=EncoderSettings(checkpoint=str(folder), max_tokens=32))
    training = replace(TRAINING, epochs=2, head_epochs=1, encoder_rate=1e-3)
    runs = [replace(run, request=replace(run.request, prompt_ids=())) for run in RUNS[:60]]
    made = train(runs, settings, training)
    assert isinstance(made.model.encoder, CheckpointEncoder)
    before = CheckpointEncoder(folder, 32, with_weights=True).state_dict()
    after = made.model.encoder.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    save_model(made.model, record_of(made.model), tmp_path / "m")
    for file in folder.iterdir():  # the saved model does not need the folder it came from
        if file.is_file():
            file.unlink()
    loaded = TextPredictor.load(tmp_path / "m")
    request = LengthRequest(pair="bundled", text="red green it takes three days", max_tokens=9)
    assert loaded.predict([request]) == made.model.predict([request])
    assert loaded.predict([request])[0] is not None
    assert loaded.predict([LengthRequest(pair="bundled", prompt_ids=(1, 2), max_tokens=9)]) == [
        None
    ]


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no encoder"):
        CheckpointEncoder(tmp_path, 32, with_weights=True)
