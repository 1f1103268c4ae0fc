"""What the daemon calls in an engine process between two of its steps.

These methods are added to vLLM's EngineCore. `AsyncLLM.engine_core.call_utility_async(name)` calls
them. Speculation adds its own methods where they are written.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from vllm.v1.engine.core import EngineCore

from flashedge.engine.vllm.inside.kv import control as kv

EngineCore.flashedge_begin = kv.begin  # type: ignore[attr-defined]
EngineCore.flashedge_offload = kv.offload  # type: ignore[attr-defined]
EngineCore.flashedge_restore = kv.restore  # type: ignore[attr-defined]
EngineCore.flashedge_view = kv.view  # type: ignore[attr-defined]
EngineCore.flashedge_set_quota = kv.set_quota  # type: ignore[attr-defined]
