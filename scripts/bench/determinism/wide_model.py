"""A second model: other widths, grouped heads, random weights with sharp distributions."""

from pathlib import Path

VOCABULARY = 512


def make_wide_model(folder: Path, seed: int = 0, positions: int = 1024) -> Path:
    """Write the checkpoint, once. Its tokens mean nothing. positions: its longest context."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        initializer_range=0.12,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        source = Path(__file__).parents[3] / "flashedge" / "bundled" / "generator" / file
        (folder / file).write_bytes(source.read_bytes())
    return folder
