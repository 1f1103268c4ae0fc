"""A split that changes with every decision: shares, batch limits, offload on and off.

Nobody would choose it. It shows that no choice changes a tree.
"""

import itertools
from collections.abc import Callable, Sequence

from flashedge.engine.base import EngineView
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload


def make_moving_split(
    views: Sequence[EngineView], *, alternates: bool, paths: Sequence[int] = (1, 2, 3)
) -> Callable[[Workload | None], KvSplit]:
    """Make a function that returns another split at each call.

    `views` are of generator and verifier. A share has room for `paths` paths of 512 tokens, one
    number after the other. With `alternates`, the engines at times own all of the memory
    alternately, and their KV is saved or dropped.
    """
    calls = itertools.count()
    path = [(-(-512 // view.block_tokens) + 1) * view.block_bytes for view in views]

    def split(load: Workload | None) -> KvSplit:
        call = next(calls)
        offload = alternates and call % 4 > 1
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
