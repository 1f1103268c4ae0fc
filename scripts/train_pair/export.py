"""Write both models as Hugging Face folders and compare their logits with transformers'."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from scripts.train_pair.model import Generator, ModelConfig, Verifier
from scripts.train_pair.tokenizer import END_OF_TEXT, IM_END, find_id


def build_hf_config(
    config: ModelConfig, architecture: str, tokenizer: PreTrainedTokenizerFast
) -> dict[str, object]:
    """Build the content of config.json."""
    pad, end = find_id(tokenizer, END_OF_TEXT), find_id(tokenizer, IM_END)
    row: dict[str, object] = {
        "architectures": [architecture],
        "model_type": "qwen2",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "max_position_embeddings": config.max_positions,
        "max_window_layers": config.layers,
        "vocab_size": config.vocab,
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "tie_word_embeddings": architecture == "Qwen2ForCausalLM",
        "torch_dtype": "float32",
        "bos_token_id": pad,
        "eos_token_id": end,
        "pad_token_id": pad,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    if architecture == "Qwen2ForProcessRewardModel":
        row["num_labels"] = 2
    return row


def export_model(
    model: Generator | Verifier, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write config, weights (fp32 safetensors) and tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    is_generator = isinstance(model, Generator)
    architecture = "Qwen2ForCausalLM" if is_generator else "Qwen2ForProcessRewardModel"
    row = build_hf_config(model.model.config, architecture, tokenizer)
    (folder / "config.json").write_text(json.dumps(row, indent=2) + "\n")
    weights = {
        name: tensor.detach().float().contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(str(folder))
    if is_generator:
        defaults = {
            "eos_token_id": [row["eos_token_id"], row["bos_token_id"]],
            "pad_token_id": row["pad_token_id"],
            "do_sample": True,
            "temperature": 0.8,
        }
        (folder / "generation_config.json").write_text(json.dumps(defaults, indent=2) + "\n")


def load_generator(folder: Path) -> Generator:
    """Read an exported generator back into our own module."""
    model = Generator(read_config(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def load_verifier(folder: Path) -> Verifier:
    """Read an exported reward model back into our own module."""
    model = Verifier(read_config(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def read_config(folder: Path) -> ModelConfig:
    """Read the shape of an exported model."""
    row = json.loads((folder / "config.json").read_text())
    return ModelConfig(
        hidden=row["hidden_size"],
        layers=row["num_hidden_layers"],
        heads=row["num_attention_heads"],
        ffn=row["intermediate_size"],
        vocab=row["vocab_size"],
        max_positions=row["max_position_embeddings"],
    )


@torch.no_grad()
def measure_logit_difference(folder: Path, length: int = 200, seed: int = 0) -> float:
    """Return the largest difference between our logits and transformers' on random ids."""
    ids = torch.randint(4, 500, (2, length), generator=torch.Generator().manual_seed(seed))
    if folder.name == "generator":
        theirs = Qwen2ForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        theirs.train(False)
        return float((load_generator(folder)(ids) - theirs(input_ids=ids).logits).abs().max())
    verifier = load_verifier(folder)
    body = Qwen2Model(Qwen2Config.from_pretrained(str(folder)))
    body.train(False)
    weights = load_file(folder / "model.safetensors")
    body.load_state_dict(
        {k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")}
    )
    their_logits = verifier.score(body(input_ids=ids).last_hidden_state)
    return float((verifier(ids) - their_logits).abs().max())
