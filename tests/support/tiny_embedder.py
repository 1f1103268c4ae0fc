"""A sentence-transformers folder with a tiny BERT of random weights."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

WORDS = ["a", "b", "c", "d", "red", "green", "blue", "3", "4", "days", "three", "four"]
WORDS += ["the", "it", "is", "takes", "hello", "world"]
MAX_TOKENS = 12


def write_embedder(folder: Path, *, pooling: str = "mean_tokens") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    sizes |= {"vocab_size": len(tokens), "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": "" if i == 0 else f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{m}": m == pooling for m in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    limit = {"max_seq_length": MAX_TOKENS, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    return folder
