"""Skywork-o1-Open-PRM as a vLLM model: Qwen2 with a linear head of one value for each token.

Importing this module registers the class itself, since vLLM starts a process to inspect a class
that it knows only by name. The weights are `model.*` and `v_head.summary.{weight,bias}`. Checked
with vLLM 0.32.0.
Ref: SkyworkAI/skywork-o1-prm-inference, model_utils/prm_model.py (value on the last hidden state,
after the final norm; its dropout is off in inference).
"""

from collections.abc import Iterable

import torch
from torch import nn
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.pooler.activations import PoolerClassify
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.qwen2_rm import Qwen2RewardBaseModel
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from flashedge.engine.vllm.inside.plugin import SKYWORK

NAME_MAPPER = WeightsMapper(orig_to_new_prefix={"v_head.summary.": "score."})


@default_pooling_type(tok_pooling_type="ALL")
class SkyworkForPrm(Qwen2RewardBaseModel):
    """Outputs each token's value, or sigmoid(value) if the request asks for the activation."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)  # the base class would build a head of two layers
        config = vllm_config.model_config
        self.config, self.head_dtype = config.hf_config, config.head_dtype
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.score = ReplicatedLinear(
            config.hf_config.hidden_size,
            1,
            params_dtype=config.head_dtype,
            return_bias=False,
            prefix=maybe_prefix(prefix, "score"),
        )
        # vLLM reads the pooler from this attribute. The activation is given here, so that it does
        # not depend on the problem type in the checkpoint's config.
        self.pooler = pooler_for_token_classify(
            config.pooler_config, act_fn=PoolerClassify(num_labels=1)
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return super().load_weights(NAME_MAPPER.apply(weights))


ModelRegistry.register_model(SKYWORK, SkyworkForPrm)
