"""Counts the entries of every table that is reachable from an object: of its dictionaries, lists,
sets, queues, and caches without a bound.

It counts in the process that calls it. `count_in_engine` has an engine's process do it: vLLM lets a
worker run a pickled function, so nothing has to be added to the engine for it.
"""

import functools
import inspect
import pickle
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from flashedge.engine.vllm.engine import VllmEngine

OPENED = ("flashedge.", "vllm.", "asyncio.queues", "queue", "starlette.", "fastapi.")
"""What the modules' names begin with whose objects are looked into. A tokenizer, a tensor or an
event loop holds no request."""

BOUNDED = {
    # in an engine
    "BlockPool.blocks": "a fixed number, each with the hash of what it caches",
    "BlockPool.cached_block_hash_to_block": "the prefix cache, an entry for each block at most",
    "BlockPool.free_block_queue": "a list through the blocks",
    "KvQuota._reserved": "the blocks beyond the quota, which moves with the load of both engines",
    "ProgramOrder._places": "the last order of programs, which each new one replaces",
    "TokenDrafts._texts": "MOST_OWNERS, and MOST_CONTEXTS of all their texts",
    "CardDrafts._prompts": "MOST_OWNERS, the last prompts of each",
    "DraftGains._counts": "one for each width and each least chance that is tried",
    "RequestRates._counts": "at most BINS * 10 for each number of children that a beam may have",
    "StepCosts._sizes": "one for each number of rows that a step may have",
    "Speculation._like": "the last request of each search, until it ends",
    "EngineCoreProc.input_queue": "what the daemon asks this moment, as the heartbeat does",
    # in the daemon
    "AsyncMPClient.utility_results": "the same, until it is answered",
    "HistoryPredictor._prompts": "KEPT_PROMPTS",
    "HistoryPredictor._runs": "KEPT_RUNS of each strategy",
    "KvShares._shares": "one for each strategy",
    "ActivePrograms._left_s": "programs that ended within RETURNS_S",
    "VllmVerifier._score_cache": "SCORE_CACHE_ENTRIES",
}
"""What may grow when its requests have ended, by class and attribute, and what bounds it."""

_TABLES = (dict, list, set, tuple, deque, bytearray)


def count_entries(roots: Mapping[str, object]) -> dict[str, int]:
    """Count the entries of the tables that are reachable from `roots` and from our modules.

    Returns them by the path from a root, such as "scheduler._jobs". The tables in one table count
    together, as "scheduler._jobs[]". Queues and caches that are made with a bound are left out.
    """
    found: Counter[str] = Counter()
    seen: dict[int, object] = {}
    waiting = deque(roots.items())
    waiting.extend((n, vars(m)) for n, m in list(sys.modules.items()) if n.startswith("flashedge."))
    while waiting:
        path, each = waiting.popleft()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        size = _count(each)
        if size is not None:
            found[path] += size
        waiting.extend((path + name, part) for name, part in _list_parts(each))
    return dict(found)


def _count(each: object) -> int | None:
    """None if it is no table, or has a bound."""
    if isinstance(each, functools._lru_cache_wrapper):
        info = each.cache_info()
        return info.currsize if info.maxsize is None else None
    if isinstance(each, deque) and each.maxlen is not None:
        return None
    return len(each) if isinstance(each, _TABLES) else None


def _list_parts(each: object) -> Iterator[tuple[str, object]]:
    if isinstance(each, Mapping):
        is_module = "__builtins__" in each
        for name, part in list(each.items()):
            if not is_module:
                yield "[]", part
            elif not name.startswith("__"):
                yield f".{name}", part
    elif isinstance(each, list | tuple | set | deque):
        yield from (("[]", part) for part in list(each))
    elif isinstance(each, functools.partial):
        yield from (("()", part) for part in (*each.args, each.keywords))
    owner = each if isinstance(each, type) else type(each)
    if owner.__module__.startswith("flashedge." if owner is each else OPENED):
        for name, part in _list_attributes(each):
            if not name.startswith("__") and f"{owner.__name__}.{name}" not in BOUNDED:
                yield f".{name}", part


def _list_attributes(each: object) -> Iterator[tuple[str, object]]:
    yield from list(getattr(each, "__dict__", {}).items())
    for base in () if isinstance(each, type) else type(each).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(each, name):
                yield name, getattr(each, name)


async def count_in_engine(engine: VllmEngine) -> dict[str, int]:
    """Count what is reachable in the engine's process from its core and its worker."""
    core = engine.process.get_llm().engine_core
    pickled: Any = pickle.dumps(_count_from_worker)
    found: list[dict[str, int]] = await core.collective_rpc_async(pickled)
    (counts,) = found
    return counts


def _count_from_worker(worker: object) -> dict[str, int]:
    """Called by the core, on whose stack it therefore finds it. The core has frozen its objects, so
    that the garbage collector lists none of them."""
    from vllm.v1.engine.core import EngineCore

    cores = (frame.frame.f_locals.get("self") for frame in inspect.stack(0))
    core = next(each for each in cores if isinstance(each, EngineCore))
    return count_entries({"core": core, "worker": worker})
