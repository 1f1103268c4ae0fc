"""A reward model on a generator's weights: low-rank changes of its matrices, and a head.

The head is that of Qwen2.5-Math-PRM: two classes, of which the second says that the path so far
will end right. Only the changes and the head are trained and saved (the adapter). `merge_adapter`
adds the changes to the weights and writes a `Qwen2ForProcessRewardModel`, which vLLM serves. A
Llama becomes one as well: it is a Qwen2 whose biases of queries, keys and values are zero. It keeps
its configuration, since by a Qwen2's transformers would split words as Qwen2 does.
Ref: arXiv 2106.09685 (LoRA); the model card of Qwen/Qwen2.5-Math-PRM-7B.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from flashedge.errors import CheckpointError
from scripts.train_prm.samples import Row

ARCHITECTURE = "Qwen2ForProcessRewardModel"
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SCALE = 2.0
"""What the product of the low-rank matrices counts."""
CARD_ROWS, CPU_ROWS = 8, 4
"""Rows of a forward pass. Chosen by hand: on a card fewer would leave it waiting for the launch of
kernels, and with more of them more is padding (of two GSM8K problems 11 % with 8, 22 % with 16)."""
_BIASED = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
"""The matrices beside which a Qwen2 has biases."""
_TOKENIZER = ("tokenizer*", "*.jinja", "vocab.json", "merges.txt", "*tokens*.json")


class LowRank(nn.Module):
    """A frozen linear map and a trained change of rank `rank`, which is zero at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        start = torch.randn(rank, base.in_features) / base.in_features**0.5
        self.a = nn.Parameter(start.to(base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, in) -> (…, out)"""
        change = F.linear(F.linear(x, self.a.to(x.dtype)), (SCALE * self.b).to(x.dtype))
        whole: Tensor = self.base(x) + change
        return whole

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Add the change to the base's weight, and return the base."""
        weight = self.base.weight
        weight.copy_(weight.float() + SCALE * self.b @ self.a)
        return self.base


class RewardModel(nn.Module):
    """A body without its language head, and the head of two classes in float32."""

    def __init__(self, body: Any, rank: int = 0) -> None:
        """rank: of the changes; 0 for a merged model, which has none."""
        super().__init__()
        width = body.config.hidden_size
        self.body = body.requires_grad_(False)
        for layer in body.layers if rank else ():
            for part in (layer.self_attn, layer.mlp):
                for name in [name for name in MATRICES if hasattr(part, name)]:
                    setattr(part, name, LowRank(getattr(part, name), rank))
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.score.to(body.device)

    def compute_log_odds(self, rows: Sequence[Row]) -> list[Tensor]:
        """Compute for each row (num_steps,) log-odds that it ends right, read at each step. Rows of
        like length go through the body together, so that little is padding."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        size = CARD_ROWS if self.body.device.type == "cuda" else CPU_ROWS
        found: dict[int, Tensor] = {}
        for first in range(0, len(order), size):
            some = order[first : first + size]
            # No mask: padding stands behind the text, where a causal model can't see it, and with a
            # mask PyTorch takes a slow attention kernel.
            ids = torch.zeros(len(some), len(rows[some[-1]].ids), dtype=torch.long)
            for at, i in enumerate(some):
                ids[at, : len(rows[i].ids)] = torch.tensor(rows[i].ids)
            states = self.body(input_ids=ids.to(self.body.device), use_cache=False)
            places = [(at, end) for at, i in enumerate(some) for end in rows[i].ends]
            at, ends = torch.tensor(places, device=self.body.device).long().reshape(-1, 2).T
            classes = self.score(states.last_hidden_state[at, ends].float())
            odds = (classes[:, 1] - classes[:, 0]).split([len(rows[i].ends) for i in some])
            found |= dict(zip(some, odds, strict=True))
        return [found[i] for i in range(len(rows))]

    @torch.no_grad()
    def rescale(self, slope: float, offset: float) -> None:
        """Turn all log-odds x into slope * x + offset."""
        last = cast(nn.Linear, self.score[2])
        last.weight.mul_(slope)
        last.bias.mul_(slope)
        last.bias[1] += offset

    def list_trained(self) -> dict[str, Tensor]:
        """The weights of the adapter by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


# ---------------------------------------------------------------- folders


def load_body(folder: Path) -> Any:
    """Load a Qwen2 or a Llama without its language head, onto the card if there is one. Raises
    CheckpointError for another model."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_base(folder, config)
        body: Any = AutoModel.from_pretrained(
            folder, dtype="auto", attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"can't load the model in {folder}: {error}") from error
    return body.to("cuda" if torch.cuda.is_available() else "cpu")


def _check_base(folder: Path, config: Any) -> None:
    kind = config.model_type
    if kind not in ("qwen2", "llama"):
        raise CheckpointError(
            f"{folder} holds a model of the type {kind!r}",
            hint="a verifier of the family qwen_prm starts from a Qwen2 or a Llama",
        )
    is_odd = getattr(config, "head_dim", None) not in (
        None,
        config.hidden_size // config.num_attention_heads,
    )
    is_odd = is_odd or getattr(config, "mlp_bias", False)
    if kind == "llama" and (is_odd or config.attention_bias):
        raise CheckpointError(
            f"the Llama in {folder} has biases, or heads of a width that no Qwen2 has",
            hint="choose another generator",
        )


def save_adapter(model: RewardModel, file: Path, **about: str) -> None:
    """Save the trained weights in the body's dtype. about: what the file says of itself."""
    dtype = model.body.dtype
    weights = {n: p.detach().to(dtype).cpu().contiguous() for n, p in model.list_trained().items()}
    save_file(weights, file.with_suffix(".new"), metadata=about)
    file.with_suffix(".new").replace(file)  # half of one is none


def merge_adapter(generator: Path, file: Path, folder: Path) -> None:
    """Write the folder that vLLM serves. Its config.json comes last, so with it all is there."""
    weights = load_file(file)
    rank = next(value.shape[0] for name, value in weights.items() if name.endswith(".a"))
    model = RewardModel(load_body(generator), rank)
    trained = model.list_trained()
    if {n: p.shape for n, p in trained.items()} != {n: w.shape for n, w in weights.items()}:
        raise CheckpointError(f"{file} was made for another model than {generator}")
    model.load_state_dict({n: w.float() for n, w in weights.items()}, strict=False)
    for layer in model.body.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, change in list(part.named_children()):
                if isinstance(change, LowRank):
                    setattr(part, name, change.merge())
    state = {f"model.{name}": value for name, value in model.body.state_dict().items()}
    state |= {name: value for name, value in weights.items() if name.startswith("score.")}
    config = model.body.config
    if config.model_type == "llama":
        for name in [name for name in state if name.endswith(_BIASED)]:
            bias = state[name].new_zeros(state[name].shape[0])
            state[name.replace(".weight", ".bias")] = bias
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in _TOKENIZER:
        for each in generator.glob(pattern):
            shutil.copy(each, folder)
    whole = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures, config.num_labels = [ARCHITECTURE], 2
    config.save_pretrained(folder)


def load_merged(folder: Path) -> RewardModel:
    """Load what `merge_adapter` wrote."""
    model = RewardModel(load_body(folder))
    with safe_open(folder / "model.safetensors", "pt") as opened:
        head = {
            name: opened.get_tensor(f"score.{name}").float() for name in model.score.state_dict()
        }
    model.score.load_state_dict(head)
    return model.eval()
