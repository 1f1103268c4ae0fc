"""The table from which a device drafts tokens: the twin drafts what the scheduler's index drafts,
and the kernels what the twin does."""

from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flashedge.engine.vllm.inside.draft_table import naive
from flashedge.engine.vllm.inside.draft_table.naive import Slots
from flashedge.scheduling.speculation.token_drafts import AcceptanceRates, TextIndex
from flashedge.scheduling.speculation.token_drafts import draft as draft_from_index
from tests.support.sampling_rows import CPU
from tests.unit.engine.vllm.test_fused_sampling import ADA, run_python

PLACES = 1 << 16
DRAFTED = 6


def make_slots(texts: list[list[int]], owners: list[list[int]]) -> Slots:
    most = max(map(len, texts))
    return Slots(
        texts=torch.tensor([[*text, *[0] * (most - len(text))] for text in texts]).int(),
        lengths=torch.tensor([len(text) for text in texts], dtype=torch.int32),
        owners=torch.tensor(owners),
    )


def draft_by_index(indices: list[TextIndex], text: list[int]) -> list[int]:
    found = draft_from_index(
        indices,
        text,
        most=DRAFTED,
        least_chance=0.0,
        rates=AcceptanceRates(),
        ends=lambda previous, token: False,
    )
    drafted = [each.token for each in found]
    return drafted + [(drafted or text)[-1]] * (DRAFTED - len(drafted))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 5, 30, 100_000]))
def test_the_twin_drafts_what_the_index_drafts(seed: int, vocabulary: int) -> None:
    """Texts of two owners grow by a few tokens at a time. No two contexts share a place. Which of
    two indices is followed the scheduler learns, so here each text has one owner."""
    random = Random(seed)
    texts = [[random.randrange(vocabulary)] for _ in range(4)]
    owners, indices = [[1, 0], [0, 2], [1, 0], [0, 2]], {1: TextIndex(), 2: TextIndex()}
    programs = [max(pair) for pair in owners]
    table = naive.make_table(CPU, PLACES)
    tags = set()
    for _ in range(8):
        spans = []
        for slot, text in enumerate(texts):
            start = len(text)
            text += [random.randrange(vocabulary) for _ in range(random.randint(0, 5))]
            spans.append([slot, start, len(text)])
            indices[programs[slot]].add(text, start)
            for at in range(start, len(text)):
                for order in range(1, min(at, naive.LONGEST) + 1):
                    tags.add(naive.find_tag(programs[slot], text[at - order : at]))
        slots = make_slots(texts, owners)
        naive.count(table, slots, torch.tensor(spans, dtype=torch.int32), 5)
        drafted = naive.draft(table, slots, torch.arange(len(texts)), DRAFTED).tolist()
        assume(len({tag % PLACES for tag in tags}) == len(tags))
        for slot, text in enumerate(texts):
            assert drafted[slot] == draft_by_index([indices[programs[slot]]], text)


def test_owners_that_share_all_places_find_none_of_each_others_contexts() -> None:
    slots = make_slots([[3, 4, 3, 4], [3, 4, 3]], [[1, 0], [2, 0]])
    table = naive.make_table(CPU, 1)
    naive.count(table, slots, torch.tensor([[0, 0, 4]], dtype=torch.int32), 4)
    assert naive.draft(table, slots, torch.tensor([1, 0]), 2).tolist() == [[3, 3], [4, 4]]
    slots.owners[1] = torch.tensor([3, 1])
    assert naive.draft(table, slots, torch.tensor([1]), 1).tolist() == [[4]]


def test_the_longer_context_is_followed_and_of_equal_ones_the_programs() -> None:
    texts = [[1, 2, 3], [9, 2, 4], [1, 2], [9, 2], [7, 2]]
    slots = make_slots(texts, [[1, 0], [0, 2], [1, 2], [1, 2], [1, 2]])
    table = naive.make_table(CPU, PLACES)
    spans = torch.tensor([[0, 0, 3], [1, 0, 3]], dtype=torch.int32)
    naive.count(table, slots, spans, 3)
    assert naive.draft(table, slots, torch.tensor([2, 3, 4]), 1).tolist() == [[3], [4], [3]]


def test_a_slot_without_an_owner_counts_nothing() -> None:
    slots = make_slots([[3, 4, 3, 4]], [[naive.NO_OWNER] * 2])
    table = naive.make_table(CPU, PLACES)
    naive.count(table, slots, torch.tensor([[0, 0, 4]], dtype=torch.int32), 4)
    assert not table.tags.any()
    assert not table.followers.any()


def test_the_kernels_do_what_their_twin_does() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this machine")
    run_python("-m", "tests.support.interpreted_drafts", TRITON_INTERPRET="1")


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from flashedge.engine.vllm.inside.draft_table import fused

LONG, INT, TABLE = "*i64", "*i32", {"table_tags": "*i64", "table_followers": "*i64", "mask": "i32"}
TEXTS = {"texts": INT, "stride": "i32", "owners": LONG}
kernels = [
    (fused._hash_contexts, {"tags": LONG, "tokens": INT, "spans": INT, **TEXTS, "longest": "i32"},
     {"SIZE": 16}, 1),
    (fused._count_followers, {**TABLE, "tags": LONG, "tokens": INT, "items": "i32"},
     {"ITEMS": fused.ITEMS}, 4),
    (fused._draft, {"drafts": LONG, **TABLE, "rows": LONG, **TEXTS, "lengths": INT},
     {"COUNT": 7}, 1),
]
for kernel, types, constants, warps in kernels:
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    ptx = triton.compile(source, target=target, options={"num_warps": warps}).asm["ptx"]
    assert f"sm_{sys.argv[1]}" in ptx
    assert ".local" not in ptx, "registers must suffice"
"""


def test_the_kernels_compile_for_a_card(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this machine")
    run_python("-c", COMPILE, ADA, TRITON_CACHE_DIR=str(tmp_path))
