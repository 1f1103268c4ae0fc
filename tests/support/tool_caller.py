"""A tiny generator that calls a tool when it has one and is asked for a sum, and else answers.

The bundled pair never calls a tool by itself. This model is trained when it is made, on the few
conversations below, until it writes every one of them. It has 130,000 weights. The thinker, a
second one, also thinks before each answer.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from flashedge.types import THINK_CLOSE, THINK_OPEN

TOOL_NAME = "add"
SUMS = ((3, 4), (5, 3))
"""The sums that it can be asked for."""
HELLO, GREETING = "Hello", "Hello! What is the sum?"
NO_TOOLS = "I have no tools."
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}"
    "{%- for tool in tools %}{{ tool.function.name + ' ' }}{%- endfor %}{{ '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>' + m.content + '</tool_response><|im_end|>\n' }}"
    "{%- elif m.tool_calls %}{{ '<|im_start|>assistant\n' }}"
    "{%- for call in m.tool_calls %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \''
    " + (call.function.arguments | tojson) + '}\n</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
MOST_STEPS = 2000
"""Of the training. A twentieth is usual."""
SURE = 0.98
"""Least probability of each token that it has learnt, when its training ends."""
SHARPENED = 4.0
"""By how much its logits are multiplied then, so that no path of a search draws another token."""
THOUGHT = "So Q: 3 and 4. Wait, Q: 3 and 4 are 7, so it is 7."
"""What the thinker says before each answer."""
THINKS = 'reasoning_parser = "qwen3"\nthinking = true'
ENTRY = """\
[generators."{name}"]
source = "{folder}"
dtype = "float32"
max_model_len = 1024
tool_parser = "hermes"
{parser}

[pairs."{name}"]
description = "A tiny generator that calls tools, judged by the bundled verifier."
generator = "{name}"
verifier = "bundled"
max_step_tokens = 96
max_path_tokens = 192
memory = {{ generator_kv_bytes = 16_777_216, verifier_kv_bytes = 33_554_432 }}
"""


def make_pairs(folder: Path) -> str:
    """Train both generators. Returns the entries of `tool-caller` and `thinker` for models.toml."""
    entries = ""
    for name, thought, parser in (
        ("tool-caller", "", ""),
        ("thinker", f"{THINK_OPEN}{THOUGHT}{THINK_CLOSE}", THINKS),
    ):
        made = make_tool_caller(folder / name, thought)
        entries += ENTRY.format(name=name, folder=made, parser=parser)
    return entries


class Example(NamedTuple):
    """What the model learns to say after a prompt."""

    prompt: str
    said: str


def build_call(a: int, b: int) -> str:
    call = {"name": TOOL_NAME, "arguments": {"a": a, "b": b}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _say(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def list_examples(thought: str = "") -> list[Example]:
    """thought: what the model says before each answer."""
    tools, turn = _say("system", f"{TOOL_NAME} "), "<|im_start|>assistant\n"
    found = [Example(tools + _say("user", HELLO) + turn, GREETING)]
    for a, b in SUMS:
        ask, call = _say("user", f"{a} + {b}?"), build_call(a, b)
        result = _say("user", f"<tool_response>{a + b}</tool_response>")
        told = tools + ask + _say("assistant", call) + result + turn
        found += [Example(tools + ask + turn, call), Example(ask + turn, NO_TOOLS)]
        found += [Example(told, f"It is {a + b}.")]
    return [Example(example.prompt, thought + example.said) for example in found]


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which a digit is a token, and so is each mark of a call and a thought."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    marks = [f"<{slash}tool_{kind}>" for kind in ("call", "response") for slash in ("", "/")]
    marks += [THINK_OPEN, THINK_CLOSE]
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )


def make_tool_caller(folder: Path, thought: str = "") -> Path:
    """Train the model and write it into `folder`. Returns the folder. Some seconds.

    thought: what it says before each answer.

    Raises RuntimeError when it has not learnt all examples in `MOST_STEPS` steps.
    """
    examples = list_examples(thought)
    tokenizer = train_tokenizer(e.prompt + e.said for e in examples)
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        vocab_size=-(-len(tokenizer) // 32) * 32,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        dtype="float32",
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so small a model more of them only wait for each other
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(config)
            _train(model, tokenizer, examples)
            with torch.no_grad():
                model.model.norm.weight.mul_(SHARPENED)
    finally:
        torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _train(model: Any, tokenizer: Any, examples: list[Example]) -> None:
    rows = [_encode(tokenizer, example) for example in examples]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(1, MOST_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 20)
        ids, labels = _collate(rows)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and loss.item() < 0.02 and _knows_all(model, rows):
            return
    raise RuntimeError(f"the tool caller has not learnt its examples in {MOST_STEPS} steps")


def _encode(tokenizer: Any, example: Example) -> tuple[list[int], int]:
    prompt = tokenizer(example.prompt, add_special_tokens=False)["input_ids"]
    said = tokenizer(example.said + "<|im_end|>", add_special_tokens=False)["input_ids"]
    return [*prompt, *said], len(prompt)


def _collate(rows: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = [torch.tensor(row) for row, _ in rows]
    labels = [torch.tensor([-100] * start + row[start:]) for row, start in rows]
    return pad_sequence(ids, True), pad_sequence(labels, True, -100)


@torch.no_grad()
def _knows_all(model: Any, rows: list[tuple[list[int], int]]) -> bool:
    """Whether the model is sure of each token of every answer."""
    ids, labels = _collate(rows)
    chances = model(input_ids=ids).logits[:, :-1].softmax(-1)
    wanted = labels[:, 1:]
    given = chances.gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return bool((given[wanted >= 0] > SURE).all())
