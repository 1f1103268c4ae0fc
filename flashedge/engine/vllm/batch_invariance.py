"""Whether vLLM's batch-invariant kernels are used: the setting `batch_invariant`.

A sum of floats depends on its order. The fast kernels split their sums by the size of the batch, so
the last bits of a logit, and now and then a token, depend on what else is computed. In this mode
vLLM 0.32 replaces them:

- Matrix products, softmax and mean by Triton kernels with one order (compute capability 8.x), or
  by cuBLASLt without a workspace, which then can't split a sum (9.0 and later). RMSNorm by Triton.
- Attention is computed in one split. FLASH_ATTN, TRITON_ATTN and FLEX_ATTENTION can do that, and
  vLLM's own choice is one of these. FlashAttention 4 becomes 2.
- AWQ weights are unpacked for an ordinary product, without Marlin; FP8 weights likewise where their
  kernel splits sums. GPTQ weights keep Marlin, which is not batch-invariant.
- On several cards, sums between cards use one algorithm.

vLLM takes all of this from one variable. It needs no option of the engine from us: CUDA graphs,
prefix caching, and blocks of 16 tokens go with it. The noise that draws tokens never depends on the
batch (`inside.sampling`). The self-test says whether it worked (`invariance_probe`).

Checked with vLLM 0.32.0 by reading; no card has run it under FlashEdge.
"""

from __future__ import annotations

import logging
from typing import Any

from flashedge.config import Config
from flashedge.engine.platform import runs_on_cpu
from flashedge.errors import ConfigError
from flashedge.profiler.errors import ProfileError
from flashedge.profiler.gpu import read_cards

log = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)


def check_batch_invariance(config: Config, nvml: Any = None) -> bool:
    """Whether the engines are to use batch-invariant kernels.

    Raises ConfigError if a card is too old for them. Where the driver does not tell, vLLM decides.
    """
    if not config.batch_invariant:
        return False
    if runs_on_cpu():
        log.warning("batch_invariant has no effect on a CPU; the self-test says what holds there")
        return False
    try:
        cards = read_cards(nvml)
    except ProfileError as error:
        log.warning("batch_invariant: the card can't be checked: %s", error)
        return True
    for card in cards:
        if card.capability is not None and card.capability < LEAST_CAPABILITY:
            have, need = (".".join(map(str, c)) for c in (card.capability, LEAST_CAPABILITY))
            raise ConfigError(
                f"batch_invariant needs compute capability {need}, and {card.name} has {have}",
                hint="flashedge config set batch_invariant false",
                param="batch_invariant",
            )
    return True
