"""A decoder of our own for models built like Llama: the same logits as transformers' module, in less time.

It takes the weights of a loaded module: query, key and value projections become one product, gate and up another, and
everything that is the same for all layers is computed once a step. Where ranks share the module, each has its heads and
its part of every product. What it does not know runs through transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from tandem.model.attention import Scores
from tandem.model.lean_linear import Linear, fuse, fuse_and_join, fuse_and_sum, kernels
from tandem.model.sharded import local

FITTING = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
Norm = Callable[[Tensor], Tensor]


class Attention(Protocol):
    """A step as its layers see it."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None, scores: Scores
    ) -> Tensor:
        """As `attention.Step.attend`."""
        ...


class LeanDecoder(nn.Module):
    """Called with the keywords of a transformers module; knows only those that a step needs."""

    def __init__(self, module: Any) -> None:
        """Takes over the weights of `module`, one of FITTING, whose layers are gone afterwards."""
        super().__init__()
        inner, weight = module.model, module.lm_head.weight
        self.kernels = f"lean-{kernels(weight.dtype, weight.device)}"
        self.embed_tokens: nn.Embedding = inner.embed_tokens
        self._rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = inner.rotary_emb
        # Whether a step is the same work whatever its positions: these two change their frequencies with them.
        self.is_static = not any(kind in inner.rotary_emb.rope_type for kind in ("dynamic", "longrope"))
        self.layers: list[_Layer] = []
        for index in range(len(inner.layers)):
            self.layers.append(_take_layer(inner.layers[index], module.config))
            inner.layers[index] = nn.Identity()  # so that never more than one layer is held twice
        self._norm = _norm(inner.norm)
        self._head = fuse_and_join(module.lm_head)
        self.eval()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, tandem_step: Attention, **_: Any
    ) -> CausalLMOutput:
        """input_ids and position_ids int64 [1, rows], logits_to_keep int64 [wanted]; logits [1, wanted, head_width]."""
        x: Tensor = self.embed_tokens(input_ids)
        cos, sin = _rotation(*self._rotary(x, position_ids))
        x = x[0]
        for layer in self.layers:
            x = layer.forward(x, cos, sin, tandem_step)
        wanted = x if len(logits_to_keep) == len(x) else x[logits_to_keep]
        return CausalLMOutput(logits=self._head(self._norm(wanted)).unsqueeze(0))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer: [rows, hidden] to [rows, hidden]."""

    index: int
    num_heads: int
    num_kv_heads: int
    window: int | None
    scores: Scores
    norm_before: Norm
    qkv: Linear
    norm_heads: Norm | None  # of [rows, num_heads + num_kv_heads, head_dim]
    out: Linear
    norm_between: Norm
    gate_up: Linear
    activation: Norm
    down: Linear

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, step: Attention) -> Tensor:
        heads = self.qkv(self.norm_before(x)).view(len(x), self.num_heads + 2 * self.num_kv_heads, -1)
        turning, value = heads.split((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=1)
        if self.norm_heads is not None:
            turning = self.norm_heads(turning)
        turned = torch.addcmul(turning * cos, turning.roll(turning.shape[2] // 2, 2), sin)
        query, key = turned.split((self.num_heads, self.num_kv_heads), dim=1)
        query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        seen = step.attend(self.index, query, key, value, self.window, self.scores)
        x = x + self.out(seen.flatten(1))
        gate, up = self.gate_up(self.norm_between(x)).chunk(2, dim=1)
        return x + self.down(self.activation(gate) * up)


def fits(module: Any) -> bool:
    """Whether LeanDecoder may take over `module`: an architecture it knows, with nothing put in the layers' place."""
    if type(module) not in FITTING:
        return False
    head_dim = module.model.layers[0].self_attn.head_dim
    linears = [part for name, part in module.named_modules() if name.endswith(("_proj", "lm_head"))]
    return 2 * len(module.model.rotary_emb.inv_freq) == head_dim and all(type(part) is nn.Linear for part in linears)


def _take_layer(layer: Any, config: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        index=attention.layer_idx,
        num_heads=_num_heads(attention.q_proj, attention),
        num_kv_heads=_num_heads(attention.k_proj, attention),
        window=_window(attention, config),
        scores=Scores(attention.scaling, None, None),
        norm_before=_norm(layer.input_layernorm),
        qkv=fuse([attention.q_proj, attention.k_proj, attention.v_proj]),
        norm_heads=_norm_heads(attention) if hasattr(attention, "q_norm") else None,
        out=fuse_and_sum(attention.o_proj),
        norm_between=_norm(layer.post_attention_layernorm),
        gate_up=fuse([mlp.gate_proj, mlp.up_proj]),
        activation=mlp.act_fn,
        down=fuse_and_sum(mlp.down_proj),
    )


def _window(attention: Any, config: Any) -> int | None:
    """As the architecture's own attention reads it: Qwen by layer, Mistral for all, Llama never."""
    if hasattr(attention, "sliding_window"):
        found: int | None = attention.sliding_window
        return found
    return getattr(config, "sliding_window", None) if config.model_type == "mistral" else None


def _norm(module: Any) -> Norm:
    weight, eps = local(module.weight), module.variance_epsilon
    if weight.dtype == torch.float64:  # transformers squares in float32 whatever the dtype: so does its twin here
        return lambda x: weight * _rms_norm_in_float32(x, eps)
    return lambda x: rms_norm(x, weight.shape, weight, eps)


def _num_heads(projection: Any, attention: Any) -> int:
    """That this rank has."""
    return len(local(projection.weight)) // int(attention.head_dim)


def _norm_heads(attention: Any) -> Norm:
    """The norms of query and key heads as one, with a weight for each head: [num_heads + num_kv_heads, head_dim]."""
    counts = (_num_heads(projection, attention) for projection in (attention.q_proj, attention.k_proj))
    norms = (attention.q_norm, attention.k_norm)
    weight = torch.cat([local(norm.weight).expand(count, -1) for norm, count in zip(norms, counts, strict=True)])
    eps = attention.q_norm.variance_epsilon
    if weight.dtype == torch.float64:
        return lambda x: weight * _rms_norm_in_float32(x, eps)
    return lambda x: rms_norm(x, weight.shape[1:], None, eps) * weight


def _rms_norm_in_float32(x: Tensor, eps: float) -> Tensor:
    single = x.float()
    return (single * torch.rsqrt(single.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _rotation(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """From [1, rows, head_dim] to [rows, 1, head_dim] for all heads, with the minus of the rotation in `sin`."""
    half = sin.shape[2] // 2
    signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=2)
    return cos[0].unsqueeze(1), signed[0].unsqueeze(1)
