"""What an evaluation needs of a pair's own files: which weights they are, where a step ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flashedge.search.steps import BoundaryRule

_SAMPLE_BYTES = 1 << 20

StepCounter = Callable[[Sequence[int], int], tuple[int, ...]]


def weights_digest(folders: Iterable[Path]) -> str:
    """Names the weights: sizes, first and last MiB of each file, so that 15 GB take no minute."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as data:
                digest.update(data.read(_SAMPLE_BYTES))
                data.seek(max(0, size - _SAMPLE_BYTES))
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def step_counter(generator: Path) -> StepCounter:
    """Counts the tokens of a chain's steps: (token_ids, num_steps) -> (num_steps,).

    Empty where the ids don't fall into `num_steps` steps: they are not this tokenizer's.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(generator / "tokenizer.json"))
    rule = BoundaryRule.from_decode(
        lambda token: str(tokenizer.decode([token], skip_special_tokens=False)),
        tokenizer.get_vocab_size(with_added_tokens=True),
    )

    def count(token_ids: Sequence[int], num_steps: int) -> tuple[int, ...]:
        lengths = [len(piece) for piece in rule.split_ids(token_ids)]
        if len(lengths) == num_steps + 1 and lengths[-1] == 1:
            lengths[-2:] = [lengths[-2] + 1]  # the end token behind a blank line
        return tuple(lengths) if len(lengths) == num_steps else ()

    return count
