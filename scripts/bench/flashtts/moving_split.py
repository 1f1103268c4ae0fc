"""A split that is another one at each question: shares, batch limits, turns that begin and end.

Nobody would choose it. It shows that whatever is chosen changes no tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from flashedge.engine.base import EngineView
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload


def moving_split(
    views: Sequence[EngineView], *, in_turn: bool, paths: Sequence[int] = (1, 2, 3)
) -> Callable[[Workload | None], KvSplit]:
    """views: of generator and verifier; paths: of 512 tokens, that a share has room for, one after
    the other; in_turn: at times each engine has all of it in turn, its KV saved or dropped."""
    calls = itertools.count()
    path = [(-(-512 // view.block_tokens) + 1) * view.block_bytes for view in views]

    def split(load: Workload | None) -> KvSplit:
        call = next(calls)
        offload = in_turn and call % 4 > 1
        shares = [size * paths[(call + i) % len(paths)] for i, size in enumerate(path)]
        both = sum(shares)
        return KvSplit(
            generator_bytes=both if offload else shares[0],
            verifier_bytes=both if offload else shares[1],
            decode_batch=64 if call % 7 else 2,
            prefill_batch=64 if call % 5 else 3,
            generate_s=0.0,
            verify_s=0.0,
            offload=offload,
            generator_saved=call % 3 > 0,
            verifier_saved=call % 2 > 0,
        )

    return split
