"""The verifier's trunk: a language model that predicts the right next token.

It starts from the generator and reads chains with faults, the teacher's among them. Its loss covers
only the tokens that are right given what was stated before. So it forgets the teacher's
misconceptions, learns to continue after a wrong step, and gives a wrong token a low probability.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.batches import IGNORE, Batch, Encoder, Row, collate, make_fault_chains
from scripts.train_pair.generator import compute_language_loss
from scripts.train_pair.model import GENERATOR, Body, Generator, ModelConfig
from scripts.train_pair.problems import FAULTY
from scripts.train_pair.trainer import Run, compile_for, train

LEVELLING = 0.01  # holds logsumexp at zero, so that a token's logit is its log-probability
TRUNK = GENERATOR
FIRST_ROWS = 96  # chains by which the output weights are levelled before the training


class Trunk(nn.Module):
    """A language model whose output weights are not those of its embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model = Body(config)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch, length). Returns logits (batch, length, vocab)."""
        logits: Tensor = self.head(self.model(ids))
        return logits


def compute_trunk_loss(logits: Tensor, following: Tensor) -> dict[str, Tensor]:
    """The loss of the next tokens that are not IGNORE, and what holds logsumexp at zero there.

    logits: (batch, width, vocab); following: (batch, width).
    """
    words = compute_language_loss(logits, following)
    asked = following != IGNORE
    level = (logits.float().logsumexp(-1).pow(2) * asked).sum() / asked.sum()
    return {"loss": words + LEVELLING * level, "words": words, "level": level}


@torch.no_grad()
def start_trunk(generator: Generator, encoder: Encoder, rows: Sequence[Row]) -> Trunk:
    """Create a trunk that predicts what the generator does, with logsumexp near zero.

    The separator, which the generator never saw, takes the place of the blank line. One vector is
    added to the output weights of all tokens, which changes no probability. It is fitted on `rows`.
    Without it the first updates would level the logits and forget the words.
    """
    trunk = Trunk(TRUNK)
    trunk.model.load_state_dict(generator.model.state_dict())
    words = trunk.model.embed_tokens.weight
    words[[encoder.separator, encoder.blank]] = words[[encoder.blank, encoder.separator]]
    trunk.head.weight.copy_(words)
    batch = collate(rows, max(len(row.ids) for row in rows))
    states = trunk.model(batch.ids)[batch.next != IGNORE]
    level = trunk.head(states).logsumexp(-1, keepdim=True)
    shift = torch.linalg.lstsq(states.double(), -level.double()).solution[:, 0].float()
    trunk.head.weight += shift
    return trunk


def train_trunk(generator: Generator, tokenizer: PreTrainedTokenizerFast, run: Run) -> Trunk:
    """Train the trunk from the generator's weights, resuming from the last checkpoint."""
    encoder = Encoder(tokenizer)
    make_row = make_fault_chains(encoder, run.seed, FAULTY)
    rows = [make_row(run.first_index - 1 - index) for index in range(FIRST_ROWS)]
    model = start_trunk(generator, encoder, rows).to(run.device)
    compiled = compile_for(model, run.device)

    def compute_loss(batch: Batch) -> dict[str, Tensor]:
        return compute_trunk_loss(compiled(batch.ids), batch.next)

    train(model, compute_loss, make_row, run)
    return model
