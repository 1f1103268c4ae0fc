"""What starts on a card, walked through vLLM's own CUDA platform on mocked cards."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from flashedge.models.memory.engine_memory import PASS_SIZES, estimate_forward
from tests.support.fake_nvml import CARDS
from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("faked card")  # one process walks it
MIB = 1 << 20
KV_MIB = {"4090": 7808, "3090": 7872, "4060ti": 3840, "5090": 11_776, "3060": 1792}
"""KV of each engine with 1.5B models on an idle card without a display."""
GRAPHS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "tests.support.card_walk", str(home / "walked.json")]
    environ = {**os.environ, "FLASHEDGE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    options: dict[str, Any] = {"env": environ, "cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((home / "walked.json").read_text())


def test_every_card_and_dtype_starts_as_planned(walked: Any) -> None:
    found = walked["cards"]
    assert found.keys() == CARDS.keys()
    for card, start in found.items():
        assert start["kv_bytes"] == [KV_MIB[card] * MIB] * 2, card
        for name, engine in start["engines"].items():
            role, dtype = name.split()
            is_generator = role == "generator"
            assert engine == {
                "v2_runner": False,
                "async_scheduling": is_generator,
                "graph_mode": "FULL_AND_PIECEWISE" if is_generator else "NONE",
                "graph_sizes": GRAPHS if is_generator else [],
                "compilation": "VLLM_COMPILE" if is_generator else "NONE",
                "worker": "vllm.v1.worker.gpu_worker.Worker",
                "attention": "TRITON_ATTN" if dtype == "float32" else "FLASH_ATTN",
                "kv_bytes": start["kv_bytes"][0 if is_generator else 1],
                "sequences": 128,
                "block_size": 16,
            }, (card, name)


def test_the_generator_alone_has_the_second_runner(walked: Any) -> None:
    first, found = walked["cards"]["4090"]["engines"], walked["experimental"]
    assert found["generator"] == {**first["generator bfloat16"], "v2_runner": True}
    graphs = {"graph_mode": "PIECEWISE", "graph_sizes": list(PASS_SIZES)}
    compiled = {**first["verifier bfloat16"], **graphs, "compilation": "VLLM_COMPILE"}
    assert found["verifier"] == compiled


def test_steps_with_drafted_tokens_have_cuda_graphs(walked: Any) -> None:
    """For any number of sequences, and no wider than vLLM would make them without drafts."""
    found = walked["experimental"]["drafted"]
    assert [count for count, *_ in found] == list(range(1, 129))
    for count, tokens, kind, rows in found:
        needed = count * (1 + tokens)
        assert (kind, rows) == ("FULL", min(size for size in GRAPHS if size >= needed)), count


def test_engines_on_several_cards_start_as_planned(walked: Any) -> None:
    found = walked["layouts"]
    one, several = "UniProcExecutor", "mp"
    expected = {
        "one each": [([0], 1, one, 19_520, 4), ([1], 1, one, 8_000, 4)],
        "both on two": [([0, 1], 2, several, 9_088, 2), ([0, 1], 2, several, 9_088, 2)],
        "two and one": [([0, 1], 2, several, 8_640, 2), ([2], 1, one, 20_032, 4)],
    }
    for layout, engines in expected.items():
        for role, figures in zip(("generator", "verifier"), engines, strict=True):
            assert found[layout][role] == [*figures, False], (layout, role)


def test_the_forward_pass_holds_what_is_estimated(walked: Any) -> None:
    counted = walked["forward"]
    for name, (hidden, width) in {"7B": (3584, 18_944), "1.5B": (1536, 8960)}.items():
        estimate = estimate_forward(2, 4096, hidden, width, on_card=True)
        assert counted[name] == pytest.approx(estimate, rel=0.1), name


def test_a_deterministic_pass_has_one_shape_on_a_card(walked: Any) -> None:
    """No graph, whose shapes are others, and one split of attention."""
    found = walked["passes"]
    assert found["steps"] == {"shared": ["FULL", 8], "pass": ["NONE", 128]}
    before, of_pass, after = found["splits"]
    assert (before, of_pass) == (after, 1)
    assert before != 1


def test_the_daemon_on_a_card_and_on_several(walked: Any) -> None:
    """Memory does not move where a trial fails, and the engines say why. The bundled pair, whose KV
    sizes are in models.toml so that nothing is planned, is not spread over 3 cards, which don't
    divide it."""
    found = walked["daemons"]
    failed = "a trial of mapping the card's memory failed: RuntimeError: torch sees no CUDA device"
    assert found["up"] == [[failed, 128, GRAPHS], [failed, 128, []]]
    assert found["mapped"] == [[512, True, True, None], [512, False, True, None]]
    assert found["mapped at start"] == 512
    own = "each engine has cards of its own"
    assert found["apart"] == [[card, 256, own, f"GPU {card}", "own"] for card in "10"]
    for case, words in (
        ("refused", "does not fit NVIDIA GeForce RTX 4090"),
        ("refused", "the nearest pair that fits: flashedge up --pair"),
        ("three", "can't be spread over 3 cards"),
        ("bundled", "can't be spread over 3 cards"),
    ):
        assert words in found[case], case
