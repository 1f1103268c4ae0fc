"""Train the generator on the teacher's solutions, mistakes included (`teacher.py`)."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.batches import IGNORE, Batch, Encoder, make_lessons
from scripts.train_pair.model import GENERATOR, Generator, ModelConfig, set_look_back
from scripts.train_pair.problems import TRAINING
from scripts.train_pair.trainer import Run, compile_for, train


def compute_language_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy of the next tokens that are not IGNORE. logits: (batch, width, vocab)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), ignore_index=IGNORE)


def create_language_model(config: ModelConfig, seed: int) -> Generator:
    """Create an untrained model in which half of the first layer's heads look one token back."""
    torch.manual_seed(seed)
    model = Generator(config)
    set_look_back(model.model.layers[0], config.heads // 2)
    return model


def train_generator(tokenizer: PreTrainedTokenizerFast, run: Run) -> Generator:
    """Train the generator, resuming from the last checkpoint."""
    model = create_language_model(GENERATOR, run.seed).to(run.device)
    compiled = compile_for(model, run.device)

    def compute_loss(batch: Batch) -> dict[str, Tensor]:
        return {"loss": compute_language_loss(compiled(batch.ids), batch.next)}

    train(model, compute_loss, make_lessons(Encoder(tokenizer), run.seed, TRAINING), run)
    return model
