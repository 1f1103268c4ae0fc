"""The keeper of the KV memory, made once the engines are up."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import psutil

from flashedge.config import Config
from flashedge.engine.base import EngineView, Generator, Verifier
from flashedge.errors import FlashEdgeError
from flashedge.models.kv_plan import kv_plan
from flashedge.models.registry import Pair
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.manager import KvManager, Split
from flashedge.scheduling.costs.curves import CostCurve
from flashedge.scheduling.kv.split import HostLink
from flashedge.scheduling.kv.stages import EngineCost

log = logging.getLogger(__name__)

MOVES = {"os", "device"}  # `Health.kv_memory`: what one engine gives up the other can have
# Turns predicted 8 % faster were 4 % slower on two cores (docs/log.md, 2026-11-22): memory that the
# system had comes back page by page while an engine computes, which no change of turns shows
OS_MARGIN = 0.1


async def build_manager(
    pair: Pair, generator: Generator, verifier: Verifier, curves: Curves, config: Config
) -> KvManager | None:
    """Started. None where it is switched off, or the device keeps each engine's memory where it
    is, or an engine does not answer: each keeps what it started with then."""
    mechanisms = {generator.health().kv_memory, verifier.health().kv_memory}
    if not config.scheduling_kv_split or not mechanisms <= MOVES:
        return None
    try:
        keeper = await build_manager_with(
            curves,
            generator,
            verifier,
            kv_bytes=sum(kv_plan(pair, config)),
            max_batch=config.max_num_seqs,
            offload=config.scheduling_offload,
            folder_bytes=_free_bytes(config.state_dir),
        )
    except FlashEdgeError as error:
        log.warning("KV memory stays as planned: %s", error.line)
        return None
    await keeper.start()
    return keeper


async def build_manager_with(
    curves: Curves,
    generator: Generator,
    verifier: Verifier,
    *,
    kv_bytes: int,
    max_batch: int,
    offload: bool,
    folder_bytes: int,
    forced: Split | None = None,
) -> KvManager:
    """Not started. kv_bytes: of both engines, as far as they can have it; folder_bytes: free where
    KV that is offloaded may wait; forced: see `KvManager`."""
    views = await generator.view(), await verifier.view()
    costs = (
        cost_seen(curves.generator, views[0], generator.max_model_len, max_batch),
        cost_seen(curves.verifier, views[1], verifier.max_model_len, max_batch),
    )
    kv_bytes = min(kv_bytes, sum(view.blocks_total * view.block_bytes for view in views))
    link = None
    if offload:
        room = max(psutil.virtual_memory().available, folder_bytes) // 2
        link = HostLink(
            bytes_per_s=curves.link_bytes_per_s,
            capacity_bytes=room,
            switch_s=await _switch_s(generator, verifier),
            margin=OS_MARGIN if generator.health().kv_memory == "os" else 0.0,
        )
    return KvManager(
        generator, verifier, costs, curves, kv_bytes=kv_bytes, link=link, forced=forced
    )


def cost_seen(curve: CostCurve, view: EngineView, max_model_len: int, max_batch: int) -> EngineCost:
    """Of an engine that runs: its blocks as they are."""
    return cost_of(
        curve,
        token_bytes=view.block_bytes // view.block_tokens,
        block_tokens=view.block_tokens,
        max_model_len=max_model_len,
        max_batch=max_batch,
    )


def cost_of(
    curve: CostCurve, *, token_bytes: int, block_tokens: int, max_model_len: int, max_batch: int
) -> EngineCost:
    """An engine as the split sees it. token_bytes: of KV; max_model_len: of the longest request,
    which its budget always holds."""
    return EngineCost(
        curve=curve,
        kv_bytes_per_token=token_bytes,
        block_tokens=block_tokens,
        max_batch=max_batch,
        least_bytes=(-(-max_model_len // block_tokens) + 1) * block_tokens * token_bytes,
    )


def _free_bytes(folder: Path) -> int:
    """On the disk that the folder is on, or will be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


async def _switch_s(generator: Generator, verifier: Verifier) -> float:
    """Seconds that a change of turns takes with next to nothing to move."""
    clock = asyncio.get_running_loop().time
    began = clock()
    for engine in (generator, verifier):
        await engine.offload()
        await engine.restore()
    return (clock() - began) / 2
