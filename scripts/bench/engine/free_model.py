"""A language model whose forward pass costs nothing: what a step takes then is not the model's.

It knows the last token alone. Its 151,936 tokens are those of the models that people run, so that
what a sampler pays for a vocabulary is paid. `write_free_model` writes its folder; engines find its
class through a plugin of vLLM (`offer_free_model`), those of `vllm serve` as well as our own.

Two kinds of text:

- endless: all ordinary tokens are equally likely, and no path and no step ever ends;
- steps: a token tells how many are left in its step. What follows is one of those that tell one
  less, and in the end a blank line. Then a length is drawn again from the observed ones, or the
  path ends. So lengths are real ones, drawn by each engine's own sampler at T = 0.8.
"""

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

TOKENS = 151_936
TEMPERATURE = 0.8
"""At which the lengths of steps are drawn as they were observed."""
LONGEST_STEP = 512
"""Tokens. Longer steps are cut."""
ARCHITECTURE = "FreeModelForCausalLM"
HIDDEN = 64

_SOURCE = Path(__file__).parents[3] / "flashedge" / "bundled" / "generator"
_ENTRY_POINT = "[vllm.general_plugins]\nfree_model = scripts.bench.engine.free_model:register\n"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_free_model(
    folder: Path, paths: Sequence[Sequence[int]] = (), *, positions: int = 4096
) -> Path:
    """Write a checkpoint.

    paths: the observed tokens of each step of each path. Empty: endless text. positions: its
    longest context.
    """
    import torch
    from safetensors.torch import save_file

    blank_line, first = _write_tokenizer(folder)
    end = json.loads((_SOURCE / "config.json").read_text())["eos_token_id"]
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen2",
        "vocab_size": TOKENS,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": positions,
        "torch_dtype": "float32",
        "eos_token_id": end,
        "free_model": {
            "first": first,
            "blank_line": blank_line,
            "end": end,
            "left": _count_left(paths),
            "end_share": len(paths) / max(1, sum(map(len, paths))),
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_small_verifier(folder: Path, *, positions: int = 4096) -> Path:
    """Write a process reward model of one layer, with random weights and the same tokenizer."""
    import torch
    from safetensors.torch import save_file

    _write_tokenizer(folder)
    config = json.loads((_SOURCE.parent / "prm" / "config.json").read_text())
    config |= {"vocab_size": TOKENS, "hidden_size": HIDDEN, "intermediate_size": HIDDEN}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    config |= {"max_window_layers": 1, "max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    square, layer = (HIDDEN, HIDDEN), "model.layers.0"
    attention = [f"{layer}.self_attn.{name}_proj" for name in "qkvo"]
    mlp = [f"{layer}.mlp.{name}_proj" for name in ("gate", "up", "down")]
    shapes = {f"{name}.weight": square for name in (*attention, *mlp, "score.0")}
    shapes |= {"model.embed_tokens.weight": (TOKENS, HIDDEN), "score.2.weight": (2, HIDDEN)}
    norms = (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", "model.norm")
    biases = {f"{name}.bias": HIDDEN for name in (*attention[:3], "score.0")} | {"score.2.bias": 2}
    draw = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=draw) * 0.1 for name, shape in shapes.items()}
    weights |= {f"{name}.weight": torch.ones(HIDDEN) for name in norms}
    weights |= {name: torch.zeros(width) for name, width in biases.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _write_tokenizer(folder: Path) -> tuple[int, int]:
    """Write that of the bundled pair, with words of four letters up to TOKENS.

    Returns the token of a blank line, and the first one of those words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((_SOURCE / "tokenizer.json").read_text())
    tokenizer["model"]["ignore_merges"] = True  # a word of the vocabulary is one token
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    first = len(vocabulary)
    words = (word for word in map(_spell, itertools.count()) if word not in vocabulary)
    vocabulary |= dict(zip(itertools.islice(words, TOKENS - first), itertools.count(first)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((_SOURCE / name).read_bytes())
    return vocabulary["ĊĊ"], first


def _spell(index: int) -> str:
    """A word of four letters and the space before it, as long as most words of a real model."""
    letters = ""
    for _ in range(4):
        index, letter = divmod(index, 26)
        letters += _LETTERS[letter]
    return "Ġ" + letters


def _count_left(paths: Sequence[Sequence[int]]) -> list[float]:
    """How often so many tokens are left after the first one of a step, the blank line left out."""
    lengths = Counter(max(2, min(length, LONGEST_STEP)) - 2 for steps in paths for length in steps)
    total = sum(lengths.values())
    return [lengths[left] / total for left in range(max(lengths, default=-1) + 1)]


@contextmanager
def offer_free_model() -> Iterator[None]:
    """Let the engines that are started meanwhile find the class, in this process or another."""
    before = os.environ.get("PYTHONPATH")
    with TemporaryDirectory(prefix="flashedge-free-model-") as name:
        info = Path(name) / "flashedge_free_model-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        (info / "entry_points.txt").write_text(_ENTRY_POINT)
        paths = [name, str(Path(__file__).parents[3]), *([before] if before else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        sys.path.insert(0, name)
        try:
            yield
        finally:
            sys.path.remove(name)
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


def register() -> None:
    """vLLM's plugin: name the class, and time the steps where that is asked for."""
    from vllm import ModelRegistry

    from scripts.bench.engine.step_times import record_steps

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "scripts.bench.engine.free_layers:FreeModel")
    record_steps()
