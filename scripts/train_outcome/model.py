"""The outcome model: the bundled verifier's body, and one linear score of a whole answer.

The body stays as it is. Its last state carries the greatest surprise of the text so far
(`scripts/train_pair/assemble.py`), and more; which mixture of its 256 coordinates tells right from
wrong answers is learnt from pairs of answers to one problem. No step is labelled and no answer is
compared with another by its spelling.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

from flashedge.cli.progress import show_bar
from scripts.train_outcome.answers import LabelledAnswers

ARCHITECTURE = "Qwen2ForSequenceClassification"
ROWS = 16  # answers that are read at a time
RIDGE = 2e-3
ROUNDS = 30


@torch.no_grad()
def read_states(verifier: Path, labelled: Sequence[LabelledAnswers]) -> list[Tensor]:
    """Read the body's state at the last token of each conversation.

    verifier: the bundled verifier's folder. Returns (copies, hidden) for each problem.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(verifier))
    body = Qwen2Model(Qwen2Config.from_pretrained(str(verifier)))
    body.train(False)
    weights = load_file(verifier / "model.safetensors")
    body.load_state_dict(
        {n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")}
    )
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": found.problem}, {"role": "assistant", "content": answer}],
            tokenize=False,
        )
        for found in labelled
        for answer in found.answers
    ]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    states = torch.zeros(len(ids), body.config.hidden_size)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # like lengths, little padding
    with show_bar("states", len(ids), unit="answers") as advance:
        for first in range(0, len(order), ROWS):
            rows = order[first : first + ROWS]
            width = max(len(ids[row]) for row in rows)
            batch = torch.zeros(len(rows), width, dtype=torch.long)
            for index, row in enumerate(rows):
                batch[index, : len(ids[row])] = torch.tensor(ids[row])
            ends = torch.tensor([len(ids[row]) - 1 for row in rows])
            # Padding stands behind the text, where a causal model can't see it.
            found_states = body(input_ids=batch).last_hidden_state
            states[rows] = found_states[torch.arange(len(rows)), ends]
            advance(len(rows))
    sizes = [len(found.answers) for found in labelled]
    return [*torch.split(states, sizes)]


def fit_score(states: Sequence[Tensor], right: Sequence[Sequence[bool]]) -> Tensor:
    """Fit the weights (hidden,) of a linear reward by the Bradley-Terry loss.

    states: (copies, hidden) for each problem; right: (copies,) for each. The loss is the mean, over
    problems with both kinds, of -log sigmoid(reward of a right one - reward of a wrong one).
    Ref: arXiv 2203.02155 §3.5, here with a linear reward.
    """
    gaps, shares = [], []
    for found, labels in zip(states, right, strict=True):
        good = torch.tensor(labels, dtype=torch.bool)
        if good.all() or not good.any():
            continue
        pairs = (found[good][:, None] - found[~good][None]).flatten(0, 1).double()
        gaps.append(pairs)
        shares.append(torch.full((len(pairs),), 1 / len(pairs), dtype=torch.double))
    if not gaps:
        raise ValueError("no problem has a right and a wrong answer")
    gap, share = torch.cat(gaps), torch.cat(shares) / len(shares)
    scale = gap.pow(2).mean(0).sqrt().clamp_min(1e-6)
    gap = gap / scale
    weights = torch.zeros(gap.shape[1], dtype=torch.double)
    ridge = RIDGE * torch.eye(gap.shape[1], dtype=torch.double)
    for _ in range(ROUNDS):  # Newton's method: the loss is convex
        wrong = share * (-(gap @ weights)).sigmoid()
        gradient = ridge @ weights - gap.T @ wrong
        curvature = gap.T @ (gap * (wrong * (gap @ weights).sigmoid())[:, None]) + ridge
        weights = weights - torch.linalg.solve(curvature, gradient)
    return (weights / scale).float()


def export_outcome_model(verifier: Path, score: Tensor, folder: Path) -> None:
    """Write the verifier's body with the score (hidden,) as a Hugging Face folder."""
    shutil.copytree(verifier, folder, dirs_exist_ok=True)
    config = json.loads((verifier / "config.json").read_text())
    del config["num_labels"]
    config |= {
        "architectures": [ARCHITECTURE],
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {
        name: tensor
        for name, tensor in load_file(verifier / "model.safetensors").items()
        if name.startswith("model.")
    }
    weights["score.weight"] = score[None].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
