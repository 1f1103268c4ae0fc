"""Which predictor the setting builds, what it falls back to, and what it learns at its start."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from flashedge.config import Config, load_config
from flashedge.learned.encoder import SmallEncoder
from flashedge.learned.files import ModelRecord, save_model
from flashedge.learned.model import LengthModel
from flashedge.learned.settings import POINT, EncoderSettings, ModelSettings
from flashedge.models.folders import pair_fingerprint
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.runtime.lengths.build import build_predictor, load_history
from flashedge.runtime.lengths.fallback import FallbackPredictor
from flashedge.runtime.lengths.history.predictor import HistoryPredictor
from flashedge.runtime.lengths.model_folders import (
    find_folder,
    find_mismatch,
    hash_tokenizer,
    list_records,
    name_model,
)
from flashedge.runtime.lengths.prediction_queue import PredictionQueue
from flashedge.runtime.records.store import RunStore
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.request import LengthRequest
from tests.support.length_rig import make_run, make_runs, store_runs

ENCODER = EncoderSettings(vocabulary=16, max_tokens=32, width=8, layers=1, heads=1)
SETTINGS = ModelSettings(encoder=ENCODER, head=(8,))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    settings = {"scheduling_lengths": "text"}
    return load_config(settings, environ={"FLASHEDGE_HOME": str(tmp_path)})


@pytest.fixture
def pair(config: Config) -> Pair:
    return find_pair("bundled", config)


def save(pair: Pair, config: Config, settings: ModelSettings = SETTINGS, **changes: str) -> None:
    facts = {
        "fingerprint": pair_fingerprint(pair, config),
        "tokenizer": hash_tokenizer(pair, config),
        **changes,
    }
    provenance = {"num_prompts": 1, "date": "today"}
    record = ModelRecord(pair=pair.name, settings=settings, provenance=provenance, **facts)
    model = LengthModel(settings, SmallEncoder(settings.encoder))
    save_model(model, record, find_folder(pair.name, name_model(settings), config))


def test_the_setting_names_the_predictor(config: Config, pair: Pair) -> None:
    def build(name: str) -> object:
        return build_predictor(pair, replace(config, scheduling_lengths=name))

    assert build("off") is None
    assert isinstance(build("history"), HistoryPredictor)
    assert load_config(environ={}).scheduling_lengths == "history"


def test_without_a_text_model_history_stands_in(
    config: Config, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert isinstance(build_predictor(pair, config), HistoryPredictor)
        save(pair, config, tokenizer="another")
        assert isinstance(build_predictor(pair, config), HistoryPredictor)
        save(pair, config, fingerprint="another")
        assert isinstance(build_predictor(pair, config), HistoryPredictor)
        (find_folder("bundled", "log_t", config) / "model.json").write_text("{")
        assert isinstance(build_predictor(pair, config), HistoryPredictor)
    lines = [record.getMessage() for record in caplog.records]
    reasons = ("flashedge lengths train", "another tokenizer", "has changed", "no length model")
    for line, reason in zip(lines, reasons, strict=True):
        assert reason in line


def test_a_text_model_that_fits_is_asked_before_history(config: Config, pair: Pair) -> None:
    save(pair, config)
    predictor = build_predictor(pair, config)
    assert isinstance(predictor, FallbackPredictor)
    readable = make_run(1).request
    text_only = LengthRequest(pair="bundled", kind="beam", text="user: a", max_tokens=99)
    assert [one is not None for one in predictor.predict([text_only, readable])] == [False, True]
    assert "no run has ended" in predictor.explain(text_only)
    for run in make_runs(range(5)):
        predictor.learn(run)
    found = predictor.predict([text_only, readable, text_only])
    assert all(one is not None for one in found)
    assert found[0] == found[2] != found[1]
    assert "the prompt is new" in predictor.explain(text_only)
    assert "trained on 1 prompt" in predictor.explain(readable)


def test_each_kind_of_model_has_a_folder(config: Config, pair: Pair) -> None:
    save(pair, config)
    save(pair, config, replace(SETTINGS, objective=POINT))
    found = dict(list_records("bundled", config))
    assert list(found) == ["log_t", "point"]
    assert find_mismatch(found["point"], pair, config) is None
    changed = replace(pair, system_prompt="Be brief.")
    assert find_mismatch(found["point"], changed, config) == "it reads another tokenizer's tokens"
    assert find_folder("a/../b", "log_t", config).parent.parent == config.state_dir / "lengths"


async def test_the_stored_runs_are_learned_in_the_prediction_thread(
    config: Config, pair: Pair
) -> None:
    store = RunStore(config.state_dir / "runs.sqlite")
    assert list(load_history(store, pair, config)) == []
    store_runs(store, 30)
    predictor = build_predictor(pair, replace(config, scheduling_lengths="history"))
    assert predictor is not None
    predictions = PredictionQueue(predictor)
    predictions.start(lambda: load_history(store, pair, config))
    arrived: asyncio.Future[LengthDistribution] = asyncio.get_running_loop().create_future()
    request = LengthRequest(
        pair="bundled", kind="self_consistency", text="user: new", prompt_tokens=30, max_tokens=99
    )
    predictions.submit(request, arrived.set_result)
    async with asyncio.timeout(20):
        found = await arrived
    lengths = [tokens for i in range(30) for tokens in make_run(i, outputs=2).lengths.tokens]
    assert float(found.quantile(np.array(0.5))) == pytest.approx(median(lengths), rel=0.2)
    await predictions.stop()
    store.close()
