"""vLLM's two model runners: which one an engine has, and that both draw the same tokens."""

from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as FirstRunner

from flashedge.config import load_config
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm import pair, shape_probe
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.keys import ARGS_KEY, SECOND_RUNNER
from flashedge.engine.vllm.inside.noise import PositionNoise, SlotNoise
from flashedge.engine.vllm.inside.runner_kind import check_runner, find_kind
from flashedge.engine.vllm.translate import check_passes, explain_no_passes, explain_spread_sums
from flashedge.errors import ConfigError, EngineError, RequestError
from flashedge.models.shape import BoundedLayers, ModelShape
from flashedge.runtime.request.plan import check_shapes

VOCAB = 300
CPU = torch.device("cpu")
CUTS = ((0, 1.0, 0.0), (20, 0.9, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.05), (5, 1.0, 0.0))


def make_config(*, second: bool = False) -> Any:
    ours = {ARGS_KEY: {SECOND_RUNNER: True} if second else {}}
    model = SimpleNamespace(get_vocab_size=lambda: VOCAB)
    return SimpleNamespace(additional_config=ours, model_config=model)


def make_params(number: int) -> SamplingParams:
    """Every fifth request is greedy, and another fifth is vLLM's own."""
    if number % 5 == 4:
        return SamplingParams(temperature=0.0)
    k, p, least = CUTS[number % len(CUTS)]
    temperature = 0.0 if number % 5 == 3 else 0.8
    ours = {"seed": number, "temperature": temperature, "top_k": k, "top_p": p, "min_p": least}
    return SamplingParams(temperature=0.0, extra_args={ARGS_KEY: ours})


def draw_by_first(logits: torch.Tensor, params: list[SamplingParams], ends: list[int]) -> list[int]:
    noise = PositionNoise(make_config(), CPU, False)
    added: Any = [(i, each, [0] * 3, [0] * (ends[i] - 3)) for i, each in enumerate(params)]
    noise.update_state(BatchUpdate(batch_size=len(params), removed=[], added=added, moved=[]))
    return noise.apply(logits.clone()).argmax(1).tolist()


def draw_by_second(
    logits: torch.Tensor, params: list[SamplingParams], ends: list[int], slots: list[int]
) -> list[int]:
    states: Any = SimpleNamespace(device=CPU, max_num_reqs=512)
    noise = SlotNoise(make_config(), states)
    for slot in slots:  # what was there before is forgotten
        noise.add_request(slot, make_params(slot + 1))
    for slot, each in zip(slots, params, strict=True):
        is_ours = bool(each.extra_args) and each.extra_args[ARGS_KEY]["temperature"] > 0
        assert noise.add_request(slot, each) == is_ours, "vLLM's own need no processing"
    context = make_context(slots, slots, [end - 1 for end in ends])
    return noise.apply(logits.clone(), context).argmax(1).tolist()


def make_context(slots: list[int], of_rows: list[int], last: list[int]) -> Any:
    """slots: of the requests. of_rows: the slot of each row. last: each row's position."""
    return SimpleNamespace(
        idx_mapping_np=np.array(slots),
        expanded_idx_mapping=torch.tensor(of_rows),
        pos=torch.tensor(last),
    )


@pytest.mark.parametrize("rows", [1, 64, 65, 256])
def test_both_runners_draw_the_same_tokens_whatever_the_batch(rows: int) -> None:
    """A row alone draws what it draws among the others."""
    random = torch.Generator().manual_seed(rows)
    drawn = 0
    while drawn < 2500:
        logits = torch.randn(rows, VOCAB, generator=random) * 3
        params = [make_params(drawn + row) for row in range(rows)]
        ends = torch.randint(4, 400, (rows,), generator=random).tolist()
        slots = torch.randperm(512, generator=random)[:rows].tolist()
        first = draw_by_first(logits, params, ends)
        assert draw_by_second(logits, params, ends, slots) == first
        one = int(torch.randint(rows, (1,), generator=random))
        alone = (logits[one : one + 1], params[one : one + 1], ends[one : one + 1])
        assert draw_by_second(*alone, [slots[one]]) == [first[one]]
        drawn += rows


def test_each_row_of_a_request_draws_by_the_noise_of_its_own_position() -> None:
    """Requests with several rows each, as where tokens are drafted."""
    states: Any = SimpleNamespace(device=CPU, max_num_reqs=8)
    noise = SlotNoise(make_config(), states)
    params, slots, counts, ends = (
        list(map(make_params, range(5))),
        [6, 0, 3, 7, 1],
        [3, 1, 9, 2, 4],
        40,
    )
    for slot, each in zip(slots, params, strict=True):
        noise.add_request(slot, each)
    rows = [(request, at) for request, count in enumerate(counts) for at in range(count)]
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    of_rows = [slots[request] for request, _ in rows]
    context = make_context(slots, of_rows, [ends + at - 1 for _, at in rows])
    drawn = noise.apply(logits.clone(), context).argmax(1).tolist()
    each_alone = [
        draw_by_first(logits[row : row + 1], [params[request]], [ends + at])[0]
        for row, (request, at) in enumerate(rows)
    ]
    assert drawn == each_alone
    assert drawn != logits.argmax(1).tolist()


@pytest.mark.parametrize("second", [False, True])
def test_an_engine_has_the_runner_that_it_was_prepared_for(second: bool) -> None:
    kinds = (type("CPUModelRunner", (kind,), {}) for kind in (FirstRunner, SecondRunner))
    first, other = map(object.__new__, kinds)
    assert (find_kind(first), find_kind(other)) == ("first", "second")
    right, wrong = (other, first) if second else (first, other)
    check_runner(right, make_config(second=second))
    asked = "second" if second else "first"
    with pytest.raises(EngineError, match=f"and not with its {asked} model runner"):
        check_runner(wrong, make_config(second=second))
    with pytest.raises(EngineError, match=r"computes with builtins\.object"):
        check_runner(object(), make_config(second=second))


def test_a_cpu_without_triton_has_no_second_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = load_config({"features": "second_runner=on"}, environ={})
    found: list[EntryPoint] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: found)
    with pytest.raises(ConfigError, match="second_runner is on, but vLLM's second"):
        pair.check_second_runner(asked)
    pair.check_second_runner(load_config(environ={}))
    found.append(EntryPoint("cpu", "somewhere", "triton.backends"))
    pair.check_second_runner(asked)


def test_what_a_cpu_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"layers": 2, "heads": 1, "kv_heads": 1, "head_dim": 32, "params": 9}
    states = ModelShape(name="m", **shape, bounded=BoundedLayers(layers=1, bytes=64))
    pair.check_cpu(states, "bfloat16")
    with pytest.raises(ConfigError, match="in bfloat16 alone"):
        pair.check_cpu(states, "float32")
    pair.check_cpu(replace(states, bounded=None), "float32")
    monkeypatch.setattr(pair.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="can't load m without torchvision"):
        pair.check_cpu(replace(states, is_multimodal=True), "bfloat16")


@pytest.mark.parametrize(
    ("fields", "why", "hint"),
    [
        ({"second_runner": True}, r"second_runner\)", "switch the feature second_runner off, or "),
        ({"bounded": BoundedLayers(layers=1, bytes=1)}, "the generator has layers with a slid", ""),
        (
            {"cards": 2},
            r"is spread over 2 cards \(setting devices\), whose sums",
            "set batch_invariant to true, give it one card, or ",
        ),
    ],
)
def test_no_search_is_deterministic_on(fields: dict[str, Any], why: str, hint: str) -> None:
    options = EngineOptions(
        name="generator", model=Path(), dtype="float32", max_model_len=8, kv_bytes=8, **fields
    )
    with pytest.raises(RequestError, match=why) as request:
        check_passes(options)
    with pytest.raises(RequestError, match=why) as refused:
        check_shapes({"no_passes": explain_no_passes(options), "replay_shape": None})
    assert request.value.hint == refused.value.hint == f"{hint}leave out deterministic"


def test_batch_invariant_kernels_also_add_the_sums_of_cards_in_one_order() -> None:
    options = EngineOptions(
        name="verifier", model=Path(), dtype="bfloat16", max_model_len=8, kv_bytes=8, cards=2
    )
    assert explain_spread_sums(options) is not None
    assert explain_spread_sums(replace(options, batch_invariant=True)) is None


async def test_the_reason_of_the_generator_goes_before_that_of_the_verifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def find_nothing(*_: object, **__: object) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(pair, "check_invariance", find_nothing)
    monkeypatch.setattr(pair, "build_fingerprint", lambda *_: {})
    options = EngineOptions(
        name="verifier", model=Path(), dtype="bfloat16", max_model_len=8, kv_bytes=8, cards=2
    )
    engines: Any = object.__new__(pair.VllmPair)
    engines._pair, engines._config = SimpleNamespace(has_verifier=True), None
    engines.verifier = SimpleNamespace(options=options)
    for changes, told in ({"second_runner": True}, "second"), ({"cards": 1}, "the verifier"):
        engines.generator = SimpleNamespace(options=replace(options, **changes))
        monkeypatch.setattr(shape_probe, "choose_shape", find_nothing)
        why, _ = (await engines.self_test(Turns()))["no_passes"]
        assert told in why
