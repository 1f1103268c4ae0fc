"""Samples tokens as argmax(logits / T + Gumbel noise).

The noise of a token at absolute position p under seed s is computed from a hash of s, p and the
token's id alone. It does not depend on batch, request or preemptions. vLLM's own seeded sampling
restarts its random stream with each request, so a path that is submitted again from a boundary
would draw other tokens. vLLM's own temperature for these requests is 0, at which it takes the
argmax of what this returns. Requests with penalties do not come here: the first model runner
applies penalties after this processor.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor

from flashedge.engine.vllm.inside.keys import PLAIN_SAMPLING, read_args, read_config
from flashedge.engine.vllm.inside.sampling import naive, on_cpu
from flashedge.engine.vllm.inside.sampling.naive import (
    FIELDS,
    IndexedRow,
    SampledRow,
    copy_to,
    find_span,
    pack_rows,
)
from flashedge.types import MAX_SEED

log = logging.getLogger(__name__)

Sampler = Callable[[torch.Tensor, torch.Tensor], None]
"""Marks winners in logits, (batch, vocab). The second argument is what `pack_rows` returns."""


class PositionNoise(LogitsProcessor):
    """Draws tokens in vLLM's first model runner, except where `make_row` returns None."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.drawer = TokenDrawer(vllm_config, device)
        self._rows: dict[int, SampledRow] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def build(params: SamplingParams, prompt: Any, output: list[int]) -> SampledRow | None:
            return None if prompt is None else make_row(params, len(prompt), output)

        process_dict_updates(self._rows, batch_update, build)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Make the drawn token of each row its argmax, in place. logits: (batch, vocab) float32."""
        sampled = [(i, r) for i, r in self._rows.items() if r.temperature > 0 and i < len(logits)]
        self.drawer.mark_winners(logits, sampled)
        return logits


class SlotNoise(SlotProcessor):
    """Draws tokens in vLLM's second model runner. That runner's own noise depends on seed and
    position alone, too, but its top-p has another kernel for batches of more than 64 rows.

    A request has a row for each drafted token, and each row draws by the noise of its own position.
    vLLM's temperature is 0, so its rejection sampler keeps the drafted tokens up to the first that
    is not the drawn one, and returns the drawn one in its place. In an asynchronous engine only the
    card knows the positions, so a kernel on it reads them.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        slots = req_states.max_num_reqs
        self._drawer, self._device = TokenDrawer(vllm_config, req_states.device), req_states.device
        self._rows: list[SampledRow | None] = [None] * slots
        self._fields = np.zeros((slots, FIELDS), np.int64)
        """See `fused.pack_slots`."""
        self._spans = np.full(slots, -np.inf)
        """See `find_span`."""
        self._copies: tuple[torch.Tensor, torch.Tensor] | None = None
        """Both on the card, None if they have changed since."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        row = make_row(sampling_params, 0, ())
        is_sampled = row is not None and row.temperature > 0
        self._rows[req_idx] = row if is_sampled else None
        self._copies, self._fields[req_idx] = None, 0
        if row is not None and is_sampled:
            self._fields[req_idx, 1:3] = row.seed, row.top_k
            self._fields[req_idx, 3:].view(np.float64)[:] = row.temperature, row.top_p
            self._spans[req_idx] = find_span(row)
        return is_sampled

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        rows = [row for slot in ctx.idx_mapping_np.tolist() if (row := self._rows[slot])]
        kernel = self._drawer.kernel
        if rows and kernel is not None:
            cuts = any(row.min_p for row in rows)
            kernel(logits, self._pack_rows(logits, ctx, cuts=cuts))
        elif rows:
            self._drawer.mark_winners(logits, self._list_rows(ctx))
        return logits

    def _pack_rows(self, logits: torch.Tensor, ctx: LogitsContext, *, cuts: bool) -> torch.Tensor:
        """Describe the rows to the kernel. cuts: whether min-p excludes tokens of any."""
        from flashedge.engine.vllm.inside.sampling.fused import pack_slots

        if self._copies is None:
            self._copies = (
                copy_to(self._fields, torch.int64, self._device),
                copy_to(self._spans, torch.float32, self._device),
            )
        fields, spans = self._copies
        if cuts:
            of_rows = spans.index_select(0, ctx.expanded_idx_mapping).unsqueeze(1)
            least = logits.amax(dim=1, keepdim=True) + of_rows
            logits.masked_fill_(logits < least, float("-inf"))
        return pack_slots(fields, ctx.expanded_idx_mapping, ctx.pos)

    def _list_rows(self, ctx: LogitsContext) -> list[IndexedRow]:
        """List the sampled rows. The host waits for a card, but PyTorch draws only without the
        kernel, which takes longer anyway."""
        found = []
        places = zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)
        for index, (slot, last) in enumerate(places):
            if (row := self._rows[slot]) is not None:
                found.append((index, row.move(last + 1)))
        return found


def make_row(params: SamplingParams, prompt_len: int, output: Sequence[int]) -> SampledRow | None:
    """Describe how the token after prompt and output is drawn. None if vLLM's own sampler draws it.
    Outside of runs the seed is vLLM's, which gives each choice of a request its own."""
    args = read_args(params)
    if "temperature" not in args:
        return None
    seed = args.get("seed")
    return SampledRow(
        seed=params.seed & MAX_SEED if seed is None else seed,
        temperature=args["temperature"],
        top_k=args["top_k"],
        top_p=args["top_p"],
        min_p=args.get("min_p", 0.0),
        prompt_len=prompt_len,
        output=output,
    )


def is_plain(params: SamplingParams) -> bool:
    """Whether nothing but the noise, temperature, top-k, top-p and min-p chooses the tokens."""
    return not (
        params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words
        or params.min_tokens
    )


class TokenDrawer:
    """Draws the tokens of a batch by what is fastest on its device: `fused` on a card, `on_cpu` on
    a CPU. Both draw the tokens of `naive`. The host never waits for a card."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        self._device = device
        self._token_hashes: torch.Tensor | None = None
        has_kernels = not read_config(vllm_config).get(PLAIN_SAMPLING, False)
        self.kernel: Sampler | None = None
        self._draw, self._hash_tokens = naive.sample, naive.hash_tokens
        if device.type == "cuda" and has_kernels:
            self.kernel = load_kernel(vllm_config.model_config.get_vocab_size(), device)
        elif device.type == "cpu" and has_kernels:
            self._draw, self._hash_tokens = on_cpu.mark_winners, on_cpu.hash_tokens

    def mark_winners(self, logits: torch.Tensor, sampled: Sequence[IndexedRow]) -> None:
        """Make the drawn token of each sampled row its argmax, in place."""
        if not sampled:
            return
        naive.exclude_unlikely(logits, sampled)
        if self.kernel is not None:
            return self.kernel(logits, pack_rows(sampled, self._device))
        vocab = logits.shape[1]
        if self._token_hashes is None or len(self._token_hashes) != vocab:
            self._token_hashes = self._hash_tokens(vocab, self._device)
        self._draw(logits, sampled, self._token_hashes)


ROWS = tuple(
    SampledRow(seed=7, temperature=0.8, top_k=k, top_p=p, prompt_len=position, output=[])
    for position, (k, p) in enumerate(
        [(0, 1.0), (0, 1.0), (0, 0.95), (0, 0.5), (20, 1.0), (20, 0.9)]
    )
)
"""The rows in which a kernel is compared with PyTorch: uncut, with top-p, top-k, and both."""


def load_kernel(vocab: int, device: torch.device) -> Sampler | None:
    """Compile the kernel. Returns None, and logs why, if it can't run or draws other tokens."""
    try:
        from flashedge.engine.vllm.inside.sampling.fused import mark_winners

        compare_samplers(mark_winners, vocab, device)
    except Exception as error:  # no compiler, a card that Triton does not know, ...
        log.warning("tokens are drawn by PyTorch, which is slower than the kernel: %s", error)
        return None
    return mark_winners


def compare_samplers(mark_winners: Sampler, vocab: int, device: torch.device) -> None:
    """Raises RuntimeError if the kernel draws other tokens than PyTorch for any of `ROWS`."""
    random = torch.Generator().manual_seed(0)
    logits = (torch.randn(len(ROWS), vocab, generator=random) * 3).to(device)
    indexed = list(enumerate(ROWS))
    expected = logits.clone()
    naive.sample(expected, indexed, naive.hash_tokens(vocab, device))
    mark_winners(logits, pack_rows(indexed, device))
    drawn, wanted = logits.argmax(1).tolist(), expected.argmax(1).tolist()
    if drawn != wanted:
        raise RuntimeError(f"the kernel draws {drawn} where PyTorch draws {wanted}")
