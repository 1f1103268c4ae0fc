"""The kernels that draft tokens against their naive twin, in Triton's interpreter.

`tests/unit/engine/vllm/test_draft_table.py` runs this file in a process of its own, because Triton
reads TRITON_INTERPRET when it is imported, and vLLM imports it.
"""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.support.interpreted_sampling  # noqa: F401  (it makes the interpreter quick)
from flashedge.engine.vllm.inside.draft_table import fused, naive
from flashedge.engine.vllm.inside.draft_table.naive import NO_OWNER, OWNERS, Slots
from tests.support.sampling_rows import CPU

SLOTS, MOST = 5, 40


def make_slots(random: Random, vocabulary: int) -> Slots:
    """Texts of a few tokens, so that most contexts have several followers."""
    texts = [[random.randrange(vocabulary) for _ in range(MOST)] for _ in range(SLOTS)]
    ids = NO_OWNER, 1, 2**63 - 1
    owners = [[random.choice(ids) for _ in range(OWNERS)] for _ in range(SLOTS)]
    return Slots(
        texts=torch.tensor(texts, dtype=torch.int32),
        lengths=torch.tensor([random.randint(1, MOST) for _ in range(SLOTS)], dtype=torch.int32),
        owners=torch.tensor(owners),
    )


def draw_spans(random: Random, longest: int) -> torch.Tensor:
    spans = []
    for _ in range(random.randint(1, SLOTS)):
        start = random.randint(0, MOST - 1)
        end = min(MOST, start + random.randint(0, longest))
        spans.append([random.randrange(SLOTS), start, end])
    return torch.tensor(spans, dtype=torch.int32)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([2, 4, 12, 150_000]), st.sampled_from([1, 8, 64, 4096])
)
def test_the_kernels_do_what_their_twin_does(seed: int, vocabulary: int, places: int) -> None:
    """Also where contexts share their places, and followers theirs."""
    random = Random(seed)
    slots = make_slots(random, vocabulary)
    ours, theirs = (naive.make_table(CPU, places) for _ in range(2))
    for _ in range(3):
        longest = random.choice((1, 3, 9, 16))
        spans = draw_spans(random, longest)
        fused.count(ours, slots, spans, longest)
        naive.count(theirs, slots, spans, longest)
        assert torch.equal(ours.tags, theirs.tags)
        assert torch.equal(ours.followers, theirs.followers)
        rows = torch.tensor(random.sample(range(SLOTS), 3))
        drafted = fused.draft(ours, slots, rows, 6)
        assert torch.equal(drafted, naive.draft(theirs, slots, rows, 6))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-x", "-p", "no:cacheprovider"]))
