"""Attention of a ragged step over the KV pool, as a transformers attention function named "tandem".

transformers calls it once per layer with the flattened batch, and hands on every keyword it does not know itself: so
the step's layout and the pool reach it as `tandem_step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from tandem.errors import ModelError
from tandem.model.kv_pool import KVPool
from tandem.model.ragged import RaggedPlan, Span

ATTENTION = "tandem"
# Keywords that change nothing here: dropout is off in eval mode, and the plan says which positions are seen.
HARMLESS = frozenset(
    {
        "dropout",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True)
class Step:
    """Travels through the model's forward as the keyword `tandem_step`."""

    ragged: RaggedPlan
    pool: KVPool

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None, scores: Scores
    ) -> Tensor:
        """Writes the layer's keys and values, then lets each sequence's rows attend to its own slots.

        query [num_heads, rows, head_dim], key and value [num_kv_heads, rows, head_dim]; returns [rows, num_heads,
        value_dim].
        """
        keys, values = self.pool.write(layer, self.ragged.slots, key, value)
        return attend_rows(query, keys, values, self.ragged, window, scores)


@dataclass(frozen=True, slots=True)
class Scores:
    """What turns dot products into weights, beside the mask."""

    scale: float | None
    softcap: float | None
    sinks: Tensor | None  # [num_heads]: one more score per head, whose weight goes nowhere


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tandem_step: Step,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """`Step.attend` of a batch of one: query [1, num_heads, rows, head_dim], key and value [1, num_kv_heads, rows,
    head_dim]; returns [1, rows, num_heads, value_dim].

    Raises ModelError on a keyword that would change the result in a way not built here.
    """
    if attention_mask is not None or not others.keys() <= HARMLESS or not getattr(module, "is_causal", True):
        _refuse_unknown(module, attention_mask, others)
    layer, scores = int(module.layer_idx), Scores(scaling, softcap, s_aux)  # type: ignore[arg-type]
    return tandem_step.attend(layer, query[0], key[0], value[0], sliding_window, scores).unsqueeze(0), None


def attend_rows(
    query: Tensor, keys: Tensor, values: Tensor, ragged: RaggedPlan, window: int | None, scores: Scores
) -> Tensor:
    """[rows, num_heads, value_dim] from query [num_heads, rows, head_dim] and a layer's pools, [num_slots,
    num_kv_heads, head_dim], which hold this step's keys and values already.
    """
    spans = ragged.spans(window, query.shape[0] // keys.shape[1])
    if len(spans) == 1:
        return _attend_span(query, keys[spans[0].slots], values[spans[0].slots], spans[0], scores)
    return torch.cat(
        [_attend_span(query[:, span.rows], keys[span.slots], values[span.slots], span, scores) for span in spans]
    )


def no_mask(*_: Any, **__: Any) -> None:
    """The mask function of "tandem": the layout's spans say what each row sees."""


def _attend_span(query: Tensor, keys: Tensor, values: Tensor, span: Span, scores: Scores) -> Tensor:
    """One sequence: [rows, num_heads, value_dim] from query [num_heads, rows, head_dim] and keys, values [slots,
    num_kv_heads, head_dim].

    Query heads that share a KV head stand as rows of their own where rows are few: each key is then read once. In a
    prompt they form a dimension of their own, over which keys and values are repeated by stride.
    """
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    num_heads, num_kv_heads = query.shape[0], keys.shape[0]
    if scores.softcap is not None or scores.sinks is not None:
        grouped = query.reshape(num_kv_heads, -1, *query.shape[1:])
        out = attend_explicitly(grouped, keys.unsqueeze(1), values.unsqueeze(1), span.mask, scores)
    elif span.is_folded:
        folded = query.reshape(1, num_kv_heads, -1, query.shape[2])
        shared = keys.unsqueeze(0), values.unsqueeze(0)
        out = scaled_dot_product_attention(folded, *shared, span.folded_mask, scale=scores.scale)
    else:
        grouped = query.reshape(num_kv_heads, -1, *query.shape[1:])
        shape = (-1, grouped.shape[1], -1, -1)
        shared = keys.unsqueeze(1).expand(shape), values.unsqueeze(1).expand(shape)
        mask = None if span.causal else span.mask
        out = scaled_dot_product_attention(grouped, *shared, mask, is_causal=span.causal, scale=scores.scale)
    return out.reshape(num_heads, span.num_rows, -1).transpose(0, 1)


def attend_explicitly(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Attention with soft-capped scores or sinks, which scaled_dot_product_attention does not know.

    query [num_kv_heads, group, rows, head_dim], keys and values [num_kv_heads, 1, slots, head_dim].
    """
    logits = query @ keys.transpose(2, 3) * (query.shape[3] ** -0.5 if scores.scale is None else scores.scale)
    if scores.softcap is not None:
        logits = torch.tanh(logits / scores.softcap) * scores.softcap
    if mask is not None:
        logits = logits + mask
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scores.sinks is None:
        return logits.softmax(-1).to(values.dtype) @ values
    sinks = scores.sinks.to(logits.dtype).reshape(*logits.shape[:2], 1, 1).expand(*logits.shape[:3], 1)
    weights = torch.cat([logits, sinks], dim=-1).softmax(-1)[..., :-1]
    return weights.to(values.dtype) @ values


def _refuse_unknown(module: nn.Module, attention_mask: Tensor | None, others: dict[str, Any]) -> None:
    unknown = {name for name, value in others.items() if value is not None and name not in HARMLESS | {"is_causal"}}
    if attention_mask is not None:
        unknown.add("attention_mask")
    if not others.get("is_causal", getattr(module, "is_causal", True)):
        unknown.add("a view of later positions")
    if unknown:
        raise ModelError(f"{type(module).__name__}: attention with {', '.join(sorted(unknown))} is not supported")


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, no_mask)
