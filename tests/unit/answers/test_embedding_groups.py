"""Open-ended answers grouped by a model: vectors, groups, the worker, and refused models."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertModel

from flashedge.answers.workers import embedding_groups as module
from flashedge.answers.workers.embedding import Embedder
from flashedge.answers.workers.embedding_groups import EmbeddingGroups, build_embedding_groups
from flashedge.answers.workers.line_worker import find_package_parent
from flashedge.config import load_config
from flashedge.errors import CheckpointError, ConfigError
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_embedder
from tests.support.cli_rig import cli_for
from tests.support.tiny_embedder import MAX_TOKENS, WORDS, write_embedder

HUB_NAME = "somebody/tiny-embedder"
READY = "import sys; print('{\"ready\": true}', flush=True); "
TEXTS = [f"{a} {b} {c}" for a in WORDS[:4] for b in WORDS[4:7] for c in WORDS[11:15]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return Embedder(folder)


def test_a_vector_is_the_mean_over_tokens_of_length_one(folder: Path, embedder: Embedder) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder)
    encoded = tokenizer("red green it", return_tensors="pt")
    assert encoded["input_ids"].shape == (1, 5)
    with torch.inference_mode():
        mean = model.eval()(**encoded).last_hidden_state.double().mean(1)
    expected = torch.nn.functional.normalize(mean)
    assert torch.allclose(embedder.embed(["red green it"]), expected, atol=1e-6)


def test_a_vector_is_a_function_of_its_text_alone(folder: Path, embedder: Embedder) -> None:
    whole = Embedder(folder).embed(TEXTS)
    for i in (0, 7, len(TEXTS) - 1):
        assert torch.equal(Embedder(folder).embed([TEXTS[i]])[0], whole[i])
    assert torch.equal(embedder.embed(TEXTS[::-1]), whole.flip(0))


def test_text_past_the_models_limit_is_ignored(embedder: Embedder) -> None:
    read = "a " * (MAX_TOKENS - 2)  # and the two special tokens
    shorter, whole, longer = embedder.embed([read[2:], read, read + "blue days"])
    assert torch.equal(whole, longer)
    assert not torch.equal(shorter, whole)


def test_groups_have_the_threshold_between_any_two(embedder: Embedder) -> None:
    texts = sorted(TEXTS)
    homes = module.group_texts(embedder, texts, 0.97)
    cosines = embedder.compute_cosines(texts)
    assert 1 < len(set(homes)) < len(texts)
    for i, home in enumerate(homes):
        assert all(cosines[i, j] >= 0.97 for j in range(len(texts)) if homes[j] == home)


def test_other_numbers_are_other_answers(embedder: Embedder) -> None:
    texts = ["it takes 3 days", "it takes four days", "it takes three days"]
    assert module.group_texts(embedder, texts, -1.0) == (0, 1, 0)


async def test_the_order_of_arrival_changes_names_only(folder: Path) -> None:
    def parts(answers: list[str | None], named: tuple[str | None, ...]) -> set[frozenset[str]]:
        found: dict[str, set[str]] = {}
        for answer, name in zip(answers, named, strict=True):
            if answer is None or name is None:
                assert answer is name
            else:
                found.setdefault(name, set()).add(answer)
                assert answers.index(name) <= answers.index(answer)
        return {frozenset(part) for part in found.values()}

    made = EmbeddingGroups(folder, 0.97)
    forward: list[str | None] = [*TEXTS, None, *TEXTS[:5]]
    backward = forward[::-1]
    expected = parts(forward, await made.group(forward))
    assert 1 < len(expected) < len(TEXTS)
    assert parts(backward, await made.group(backward)) == expected
    await made.close()


async def test_one_text_needs_no_worker(folder: Path) -> None:
    made = EmbeddingGroups(folder, 0.9)
    assert await made.group(["a", None, "a"]) == ("a", None, "a")
    assert await made.group([]) == ()
    assert made.worker.pid is None


async def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    answers = "[print('{\"groups\": [0, 0]}', flush=True) for _ in sys.stdin]"
    made = EmbeddingGroups(tmp_path, 0.9, command=(sys.executable, "-c", READY + answers))
    for _ in range(2):
        assert await made.group(["a", "b"]) == ("a", "a")
        assert made.worker.pid is not None
        os.kill(made.worker.pid, signal.SIGKILL)
    await made.close()


@pytest.mark.parametrize(
    "command", [("/nonexistent",), (sys.executable, "-c", READY + "sys.stdin.readline()")]
)
async def test_without_a_worker_words_decide(
    command: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = EmbeddingGroups(tmp_path, 0.9, command=command)
    texts = ["Sort the list and scan it.", "First sort the list and scan it.", "Use a set."]
    with caplog.at_level(logging.WARNING):
        assert await made.group(texts) == (texts[0], texts[0], texts[2])
    assert module.FALLBACK in caplog.text


def test_a_worker_that_can_not_prepare_says_so() -> None:
    code = "from flashedge.answers.workers.line_worker import serve; serve(lambda: 1 / 0)"
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "cwd": find_package_parent()}
    done = subprocess.run([sys.executable, "-c", code], check=True, **quiet)
    assert json.loads(done.stdout)["failed"] == "ZeroDivisionError: division by zero"


def test_no_model_is_loaded_unless_configured(tmp_path: Path, folder: Path) -> None:
    home = {"FLASHEDGE_HOME": str(tmp_path)}
    assert build_embedding_groups(load_config(environ=home)) is None
    named = {**home, "FLASHEDGE_CLUSTERS_MODEL": str(folder)}
    assert isinstance(build_embedding_groups(load_config(environ=named)), EmbeddingGroups)


@pytest.mark.parametrize(
    ("model", "said", "hint"),
    [
        ("/nowhere/model", "there is no model folder /nowhere/model", module.MODEL_HINT),
        (HUB_NAME, f"{HUB_NAME} is not on this machine", f"flashedge models pull {HUB_NAME}"),
        ("embedder0", "", "to use the folder of that name, write ./embedder0"),
    ],
)
def test_a_missing_model_is_refused(
    tmp_path: Path, model: str, said: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "embedder0").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    config = load_config({"clusters_model": model}, {"FLASHEDGE_HOME": str(tmp_path)})
    with pytest.raises(CheckpointError, match=said) as e:
        build_embedding_groups(config)
    assert e.value.exit_code == 2
    assert (e.value.hint, e.value.param) == (hint, "clusters_model")


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config({"clusters_model": str(folder)}, {})
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="torch, which is not installed") as e:
        build_embedding_groups(config)
    assert "flashedge[embeddings]" in str(e.value.hint)


def test_a_folder_that_is_no_embedding_model_is_refused(tmp_path: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(CheckpointError, match=said):
            Embedder(tmp_path / "model")

    refused("there is no model folder")
    write_embedder(tmp_path / "model", pooling="cls_token")
    refused("does not use mean pooling")
    folder = write_embedder(tmp_path / "model")
    modules, weights = folder / "modules.json", folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    refused("cut short")
    weights.write_bytes(whole)
    dense = [{"type": f"m.{k}", "path": ""} for k in ("Transformer", "Pooling", "Dense")]
    modules.write_text(json.dumps(dense))
    refused("has the modules Transformer, Pooling, Dense")
    modules.write_text("[{")
    refused("modules.json is cut short")
    modules.unlink()
    refused("modules.json is missing")


def test_pull_fetches_the_configured_model(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cli = cli_for(tmp_path, monkeypatch, capfd)
    assert cli("models", "pull", HUB_NAME, "--from", str(folder)).code == 2
    monkeypatch.setenv("FLASHEDGE_CLUSTERS_MODEL", HUB_NAME)
    assert cli("models", "pull", HUB_NAME, "--from", str(folder)).code == 0
    config = load_config()
    spec = find_embedder(config)
    assert spec is not None
    assert Embedder(resolve_model(spec, config)).embed(["red"]).shape == (1, 16)
