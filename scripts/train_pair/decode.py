"""Batched sampling with a key-value cache, for training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.train_pair.batches import Encoder
from scripts.train_pair.model import Cache, Generator

PIECE = 32  # tokens to decode before finished chains are removed from the batch


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-pad to ids (batch, longest), with counts (batch,)."""
    counts = torch.tensor([len(row) for row in rows], device=device)
    ids = torch.zeros(len(rows), int(counts.max()), dtype=torch.long, device=device)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, device=device)
    return ids, counts


@dataclass(slots=True)
class Paths:
    """Sequences that are being generated."""

    cache: Cache

    logits: Tensor
    """(batch, vocab): the logits of each path's next token."""

    written: list[list[int]]
    """The tokens that each path has generated."""

    def select(self, rows: Sequence[int], room: int) -> Paths:
        """Copy the given paths, with capacity for `room` more tokens. Giving one twice forks it."""
        index = torch.tensor(rows, dtype=torch.long, device=self.logits.device)
        return Paths(
            self.cache.select(index, room),
            self.logits[index],
            [list(self.written[row]) for row in rows],
        )


@torch.no_grad()
def open_paths(model: Generator, prompts: Sequence[Sequence[int]]) -> Paths:
    """Prefill the prompts. Call `select` to make room for new tokens."""
    ids, counts = pad(prompts, model.model.embed_tokens.weight.device)
    cache = model.model.create_cache(len(prompts), ids.shape[1] + 1)
    states = model.model.extend(ids, counts, cache)
    last = states[torch.arange(len(prompts), device=ids.device), counts - 1]
    return Paths(cache, model.compute_logits(last), [[] for _ in prompts])


@torch.no_grad()
def extend_paths(
    model: Generator,
    paths: Paths,
    stops: frozenset[int],
    limit: int,
    temperature: float,
    noise: torch.Generator,
) -> list[bool]:
    """Generate up to `limit` tokens on every path, in place.

    Returns True for each path that reached a stop token.
    """
    size, device = len(paths.written), paths.logits.device
    stopped = [False] * size
    for _ in range(limit):
        logits = paths.logits.float()
        if temperature > 0:
            # argmax(logits + Gumbel noise) samples; -log(exponential) is such noise
            waiting = torch.empty_like(logits).exponential_(generator=noise)
            logits = logits / temperature - waiting.log()
        tokens = logits.argmax(-1)
        active = torch.tensor([not flag for flag in stopped], device=device)
        for row, token in enumerate(tokens.tolist()):
            if not stopped[row]:
                paths.written[row].append(token)
                stopped[row] = token in stops
        states = model.model.extend(tokens[:, None], active.long(), paths.cache)
        paths.logits = torch.where(
            active[:, None], model.compute_logits(states[:, 0]), paths.logits
        )
        if all(stopped):
            break
    return stopped


def sample_chains(
    model: Generator,
    encoder: Encoder,
    problems: Sequence[str],
    copies: int,
    temperature: float,
    seed: int,
    limit: int = 704,
    rows_at_once: int = 256,
) -> list[list[str]]:
    """Sample `copies` solution texts of every problem, each of at most `limit` tokens."""
    prompts = [encoder.encode_prompt(text) for text in problems]
    return sample_texts(model, encoder, prompts, copies, temperature, seed, limit, rows_at_once)


def sample_texts(
    model: Generator,
    encoder: Encoder,
    prompts: Sequence[Sequence[int]],
    copies: int,
    temperature: float,
    seed: int,
    limit: int = 704,
    rows_at_once: int = 256,
) -> list[list[str]]:
    """Sample `copies` texts behind every prompt, each of at most `limit` tokens."""
    device = model.model.embed_tokens.weight.device
    noise = torch.Generator(device=device).manual_seed(seed)
    texts: list[list[str]] = []
    width = max(1, rows_at_once // copies)
    for first in range(0, len(prompts), width):
        group = prompts[first : first + width]
        paths = open_paths(model, group)
        paths = paths.select([row for row in range(len(group)) for _ in range(copies)], PIECE)
        done: list[list[int] | None] = [None] * len(paths.written)
        indices = list(range(len(done)))
        for _ in range(0, limit, PIECE):
            stopped = extend_paths(
                model, paths, frozenset({encoder.end}), PIECE, temperature, noise
            )
            for row, flag in enumerate(stopped):
                if flag:
                    done[indices[row]] = paths.written[row]
            keep = [row for row, flag in enumerate(stopped) if not flag]
            indices = [indices[row] for row in keep]
            if not keep:
                break
            paths = paths.select(keep, PIECE)
        for row, index in enumerate(indices):
            done[index] = paths.written[row]
        flat = [encoder.backend.decode(ids or [], skip_special_tokens=True) for ids in done]
        texts += [flat[start : start + copies] for start in range(0, len(flat), copies)]
    return texts
