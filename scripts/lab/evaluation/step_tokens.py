"""Count the tokens of a chain's steps with the generator's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flashedge.search.steps import BoundaryRule

StepCounter = Callable[[Sequence[int], int], tuple[int, ...]]


def step_counter(generator: Path) -> StepCounter:
    """A function (token_ids, num_steps) -> (num_steps,) tokens of each step.

    It returns () when the ids do not split into `num_steps` steps, which means that another
    tokenizer made them.
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
            lengths[-2:] = [lengths[-2] + 1]  # an end token after a blank line is no step
        return tuple(lengths) if len(lengths) == num_steps else ()

    return count
