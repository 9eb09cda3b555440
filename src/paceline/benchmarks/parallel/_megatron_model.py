"""GPT-2 or BERT as megatron-core builds them, with the weights that the benchmark `parallel` starts from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.models.building import low_dtype

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that Transformer Engine and apex are not there is said in the record
    from megatron.core import parallel_state
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

# Their names of what is in a layer and around the layers, and ours.
_IN_A_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attention.linear_qkv": "attention.qkv",
    "self_attention.linear_proj": "attention.output",
    "pre_mlp_layernorm": "feed_forward_norm",
    "mlp.linear_fc1": "feed_forward.expand",
    "mlp.linear_fc2": "feed_forward.contract",
}
_AROUND = {
    "gpt2": {
        "embedding.word_embeddings.weight": "token_embedding.weight",
        "embedding.position_embeddings.weight": "position_embedding.weight",
        "decoder.final_layernorm.weight": "final_norm.weight",
        "decoder.final_layernorm.bias": "final_norm.bias",
        "output_layer.weight": "token_embedding.weight",
    },
    "bert": {
        "embedding.word_embeddings.weight": "token_embedding.weight",
        "embedding.position_embeddings.weight": "position_embedding.weight",
        "embedding.tokentype_embeddings.weight": "type_embedding.weight",
        # Pre-norm layers end with the norm that post-norm layers begin with.
        "encoder.final_layernorm.weight": "embedding_norm.weight",
        "encoder.final_layernorm.bias": "embedding_norm.bias",
        "lm_head.dense.weight": "head_transform.weight",
        "lm_head.dense.bias": "head_transform.bias",
        "lm_head.layer_norm.weight": "head_norm.weight",
        "lm_head.layer_norm.bias": "head_norm.bias",
        "output_layer.weight": "token_embedding.weight",
        "output_layer.bias": "head_bias",
    },
}
_EPSILON = {"gpt2": 1e-5, "bert": 1e-12}


def transformer_config(parameters: ParallelParameters, *, fused: bool) -> TransformerConfig:
    """The sizes of the layout as megatron-core wants them; what it does not mention is its default."""
    layout = parameters.layout
    low = low_dtype(layout.precision)
    gelu: Any = F.gelu if fused or layout.model == "bert" else partial(F.gelu, approximate="tanh")
    recompute: dict[str, Any] = {}
    if layout.checkpointing:
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=layout.layers,
        hidden_size=parameters.hidden,
        ffn_hidden_size=4 * parameters.hidden,
        num_attention_heads=parameters.heads,
        layernorm_epsilon=_EPSILON[layout.model],
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        pipeline_dtype=low or torch.float32,
        params_dtype=low or torch.float32,
        fp16=layout.precision == "fp16",
        bf16=layout.precision == "bf16",
        activation_func=gelu,
        bias_activation_fusion=fused,  # its fused GELU is the tanh form
        bias_dropout_fusion=fused,
        gradient_accumulation_fusion=False,  # a kernel of apex
        **recompute,
    )


def build_model(parameters: ParallelParameters, config: TransformerConfig, device: torch.device) -> nn.Module:
    """This pipeline rank's part of the model on the device; megatron-core's own weights are to be replaced."""
    common: dict[str, Any] = {
        "config": config,
        "vocab_size": parameters.padded_vocabulary,
        "max_sequence_length": parameters.tokens,
        "pre_process": parallel_state.is_pipeline_first_stage(),
        "post_process": parallel_state.is_pipeline_last_stage(),
        "share_embeddings_and_output_weights": True,
    }
    if parameters.layout.model == "gpt2":
        model = GPTModel(transformer_layer_spec=get_gpt_layer_local_spec(), **common)
    else:
        model = BertModel(
            transformer_layer_spec=bert_layer_local_spec, num_tokentypes=2, add_binary_head=False, **common
        )
    return model.to(device)  # type: ignore[no-any-return]


def copy_weights(family: str, model: Any, ours: Mapping[str, Tensor]) -> None:
    """Give the model the weights of ours; each tensor-parallel rank takes its part."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = ours[_our_name(family, model, name)]
            parameter.copy_(_part(whole, parameter.shape, ranks, rank))


def in_low_precision(config: TransformerConfig, model: nn.Module) -> nn.Module:
    """The model with weights in fp16 or bf16, as megatron-core trains in mixed precision; fp32 stays."""
    return Float16Module(config, model) if config.fp16 or config.bf16 else model


def _our_name(family: str, model: Any, name: str) -> str:
    block, _, rest = name.partition(".layers.")
    if not rest:
        return _AROUND[family][name]
    place, _, inside = rest.partition(".")
    module, _, kind = inside.rpartition(".")
    number = getattr(model, block).layers[int(place)].layer_number - 1  # of the whole model, not of this stage
    return f"blocks.{number}.{_IN_A_LAYER[module]}.{kind}"


def _part(whole: Tensor, shape: torch.Size, ranks: int, rank: int) -> Tensor:
    """A tensor is split along the one axis on which the part is shorter."""
    for axis, length in enumerate(shape):
        if length != whole.shape[axis]:
            return whole.chunk(ranks, axis)[rank]
    return whole
