"""Builds the daemon's service on real vLLM engines."""

from flashedge.answers.workers.embedding_groups import build_embedding_groups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config
from flashedge.engine.memory_plan import resolve_memory
from flashedge.models.memory.fit import find_explicit
from flashedge.models.registry import find_pair
from flashedge.runtime.kv.build import choose_start_split
from flashedge.runtime.records.store import FILE, RunStore
from flashedge.runtime.served_pair import ServedPair
from flashedge.runtime.service import Service


def build(config: Config, *, load: bool = True) -> Service:
    """Build the service. `load` loads the configured pair at the start, not with its first request.
    Raises NotFound, ConfigError, CheckpointError, EngineError, StoreError."""
    first = open_pair(config.pair, config) if load else None
    texts = build_embedding_groups(config)
    store = RunStore(config.state_dir / FILE)
    return Service(config, lambda name: open_pair(name, config), first, store, MathGrader(), texts)


def open_pair(name: str, config: Config) -> ServedPair:
    """Prepare a pair whose engines are not started yet. Raises as `build`, except StoreError."""
    from flashedge.engine.vllm.pair import VllmPair  # imports torch, which takes seconds

    pair = find_pair(name, config)
    is_planned = None in find_explicit(pair, config)
    sized = resolve_memory(pair, config)
    engines = VllmPair(pair, sized, choose_start_split(pair, sized), is_planned=is_planned)
    return ServedPair(pair, engines, sized)
