"""The pair's tokenizer: byte-level BPE in which each digit and the blank line are single tokens."""

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.problems import TRAIN_SEEDS, TRAINING, make_problems, solve

VOCAB_SIZE = 1024
END_OF_TEXT, IM_START, IM_END, STEP = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"
SPECIALS = (END_OF_TEXT, IM_START, IM_END, STEP)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROBE = "\n\nFinal answer: \\boxed{"
PHRASES = (
    "user\nassistant\nsystem" + PROBE,
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Wait, that is wrong. Let me check it again. So the answer is",
)


def format_prompt(problem: str) -> str:
    """Format one user message as the chat template does, up to the first step."""
    return f"{IM_START}user\n{problem}{IM_END}\n{IM_START}assistant\n"


def find_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of a special token. Raises ValueError if the vocabulary lacks it."""
    index = tokenizer.backend_tokenizer.token_to_id(token)
    if index is None:
        raise ValueError(f"the vocabulary has no token {token}")
    return int(index)


def train_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Train on the training problems. The same seed gives the same vocabulary."""
    rng = random.Random(seed)
    corpus = [phrase for phrase in PHRASES for _ in range(200)]
    for problem in make_problems(TRAIN_SEEDS, 4000, TRAINING):
        corpus += [problem.text, "\n\n".join(solve(problem.spec, rng))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r"\n\n|\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s"), "isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.token_to_id("ĊĊ") is None:
        raise ValueError("the trained vocabulary has no token for the blank line")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START, STEP],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
