"""Skywork-o1-Open-PRM as a vLLM model: Qwen2's body, one linear value for each token.

Importing this module registers the class itself: vLLM would start a process to inspect a class that
it knows only by name. The weights are `model.*` and `v_head.summary.{weight,bias}`.

Checked with vLLM 0.32.0.
Ref: SkyworkAI/skywork-o1-prm-inference, model_utils/prm_model.py (value on the last hidden state,
after the final norm; its dropout is off in inference).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.pooler.activations import PoolerClassify
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.sequence import IntermediateTensors

from flashedge.engine.vllm.inside.plugin import SKYWORK


class ValueHead(nn.Module):
    """hidden (num_tokens, hidden_size) -> value (num_tokens, 1), in `dtype`."""

    def __init__(self, hidden_size: int, dtype: torch.dtype, prefix: str) -> None:
        super().__init__()
        self.dtype = dtype
        self.summary = ReplicatedLinear(
            hidden_size, 1, params_dtype=dtype, return_bias=False, prefix=f"{prefix}.summary"
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.summary(hidden.to(self.dtype))


@default_pooling_type(tok_pooling_type="ALL")
class SkyworkForPrm(nn.Module):
    """Outputs each token's value, or sigmoid(value) if the request asks for the activation."""

    is_pooling_model = True

    hf_to_vllm_mapper = Qwen2Model.hf_to_vllm_mapper
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config
        self.config = config.hf_config
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.v_head = ValueHead(
            config.hf_config.hidden_size, config.head_dtype, maybe_prefix(prefix, "v_head")
        )
        # vLLM reads the pooler from this attribute. The activation is given here, so that it does
        # not depend on the problem type in the checkpoint's config.
        self.pooler = pooler_for_token_classify(
            config.pooler_config, act_fn=PoolerClassify(num_labels=1)
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        hidden = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        return self.v_head(hidden)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loader = AutoWeightsLoader(self, ignore_unexpected_prefixes=["lm_head."])
        return loader.load_weights(weights)


ModelRegistry.register_model(SKYWORK, SkyworkForPrm)
