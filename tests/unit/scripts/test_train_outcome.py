"""The outcome model's fit: a linear reward from right and wrong answers to the same problems."""

import pytest
import torch

from scripts.train_outcome.measure import Trial, report_trials
from scripts.train_outcome.model import fit_score

HIDDEN = 12


def make_states(problems: int, seed: int) -> tuple[list[torch.Tensor], list[list[bool]]]:
    """States in which one direction tells right from wrong, beside an offset of each problem's."""
    noise = torch.Generator().manual_seed(seed)
    direction = torch.linspace(-1, 1, HIDDEN)
    states, right = [], []
    for _ in range(problems):
        labels = torch.rand(8, generator=noise) < 0.4
        offset = 20 * torch.randn(HIDDEN, generator=noise)
        spread = torch.randn(8, HIDDEN, generator=noise)
        states.append(offset + spread + torch.where(labels[:, None], direction, -direction))
        right.append(labels.tolist())
    return states, right


def test_the_fitted_reward_ranks_unseen_answers_better_than_chance() -> None:
    score = fit_score(*make_states(60, 1))
    states, right = make_states(60, 2)
    best = [
        labels[int((found @ score).argmax())] for found, labels in zip(states, right, strict=True)
    ]
    chance = sum(map(sum, right)) / sum(map(len, right))
    assert sum(best) / len(best) > chance + 0.3
    with pytest.raises(ValueError, match="right and a wrong"):  # all right: it teaches nothing
        fit_score([torch.randn(4, HIDDEN)], [[True] * 4])


def test_the_report_compares_the_choice_with_a_random_answer() -> None:
    trials = [
        Trial(right=(True, False), scores=(0.9, 0.1), chosen=True),
        Trial(right=(False, False), scores=(0.2, 0.3), chosen=False),
        Trial(right=(True, False), scores=(0.4, 0.6), chosen=False),
    ]
    report = report_trials(trials)
    names = ("random_answer", "best_by_outcome_model", "some_answer_right", "gain")
    percents = [report[name]["percent"] for name in names]
    assert percents == pytest.approx([100 / 3, 100 / 3, 200 / 3, 0])
    auc = report["auc_within_problem"]
    assert auc == {"mean": 0.5, "interval": auc["interval"], "problems": 2}
