"""Rows for the tests of drawing tokens."""

import math
from typing import Any

import torch

from flashedge.engine.vllm.inside.sampling.naive import SampledRow, draw_gumbel, hash_tokens

CPU = torch.device("cpu")


def make_row(seed: int, **changes: Any) -> SampledRow:
    fields = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **changes}
    return SampledRow(seed=seed, prompt_len=9, output=[], **fields)


def make_close_races(rows: list[SampledRow], vocab: int = 64) -> torch.Tensor:
    """Logits by which the sums of two tokens of each row are equal, or one or two units in the last
    place apart."""
    random = torch.Generator().manual_seed(4)
    noise = draw_gumbel([row.key for row in rows], hash_tokens(vocab, CPU).unsqueeze(0)).float()
    logits = torch.full((len(rows), vocab), -math.inf)
    for race, row in enumerate(rows):
        one, other = torch.randperm(vocab, generator=random)[:2].tolist()
        scaled = (5.0 / row.temperature + noise[race, one]) - noise[race, other]
        close = scaled * row.temperature
        for _ in range(race % 3):
            close = torch.nextafter(close, torch.tensor(math.inf if race % 2 else -math.inf))
        logits[race, one], logits[race, other] = 5.0, close
    return logits
