"""The target writes: many rows at once, all at the same position, so that their KV is one block per layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from tandem.distill.script import Script, Speakers
from tandem.errors import ModelError
from tandem.model.attention import Scores, attend_explicitly, no_mask

ATTENTION = "tandem-rows"
PACKED_ROWS = 96  # that the layout of packed weights is made for
_mkldnn: Any = torch.ops.mkldnn  # Any: not typed
MIN_P = 0.05  # sampled tokens have at least this share of the best one's probability
# Users begin with what is less likely (as Liu et al. 2023, "LLM-QAT", section 2.1, let a first token be any), for at
# temperature 1 nearly all of them plan an event and ask for help.
OPENING_TEMPERATURE = 1.5
MASS_EVERY = 8  # positions between two that are counted: a sum over the whole vocabulary costs as much as the layers


@dataclass(frozen=True, slots=True)
class Text:
    """What the target wrote in one go."""

    token_ids: Tensor  # int32 [rows, length]
    answers: Tensor  # bool [rows, length]: the token is the target's own word in an answer
    greedy: Tensor  # bool [rows]: answers are its most likely tokens; else drawn at temperature 1
    hidden: Tensor  # bfloat16 [rows, length, hidden_size]: what its head reads at each position
    mass: Tensor  # float32 [vocabulary]: the probability of each token, summed over a sample of answers' positions


class Readout(nn.Module):
    """The part of a causal language model behind its last layer: from hidden states to logits."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._tail = copy.copy(module)
        self._tail._modules = {**module._modules, module.base_model_prefix: _Given()}

    def forward(self, hidden: Tensor) -> Tensor:
        """[rows, length, head_width] from [rows, length, hidden_size], of any dtype."""
        logits: Tensor = self._tail(inputs_embeds=hidden.to(self._tail.dtype), use_cache=False).logits
        return logits


class _Given(nn.Module):
    """Stands where the layers were, and says that their output is what came in."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)


def fast_dtype(device: str) -> torch.dtype:
    """What products of many rows are fastest in there: bfloat16, but for processors that do not know it."""
    knows = torch.device(device).type != "cpu" or (
        torch.backends.mkldnn.is_available() and _mkldnn._is_mkldnn_bf16_supported()
    )
    return torch.bfloat16 if knows else torch.float32


class _Packed(nn.Module):
    """A linear layer that no longer changes, with its weight in the CPU's own order."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight  # some architectures ask for its dtype
        self._packed = _mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_ROWS)
        self._bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


def pack(module: nn.Module) -> None:
    """Replaces the linear layers of `module` where packing makes products of many rows faster."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(parent, name, _Packed(child))


def layers_of(module: Any) -> Any:
    """The part of a causal language model in front of its head."""
    return getattr(module, module.base_model_prefix)


@dataclass(slots=True)
class RowsCache:
    """Keys and values of rows that are all equally long: two tensors per layer, [rows, heads, length, dim]."""

    num_rows: int
    length: int
    position: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Puts key and value, [rows or 1, heads, 1, dim], at `position`; one row is put into all."""
        if layer not in self.layers:
            shapes = [(self.num_rows, new.shape[1], self.length, new.shape[3]) for new in (key, value)]
            self.layers[layer] = (key.new_empty(shapes[0]), value.new_empty(shapes[1]))
        keys, values = self.layers[layer]
        keys[:, :, self.position] = key[:, :, 0]
        values[:, :, self.position] = value[:, :, 0]
        return keys, values


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tandem_rows: RowsCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [rows, num_heads, 1, head_dim], key and value [rows, num_kv_heads, 1, head_dim]; returns [rows, 1,
    num_heads, value_dim]. Query heads that share a KV head stand as rows of their own, so that each key is read once.
    """
    keys, values = tandem_rows.write(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    end = tandem_rows.position + 1
    seen = slice(0 if sliding_window is None else max(0, end - sliding_window), end)
    keys, values = keys[: len(query), :, seen], values[: len(query), :, seen]
    folded = query.reshape(len(query), key.shape[1], -1, query.shape[3])
    if softcap is None and s_aux is None:
        out = scaled_dot_product_attention(folded, keys, values, scale=scaling)
    else:
        grouped = folded.flatten(0, 1).unsqueeze(2)
        scores = Scores(scaling, softcap, None if s_aux is None else s_aux.repeat(len(query)))
        keys, values = keys.flatten(0, 1).unsqueeze(1), values.flatten(0, 1).unsqueeze(1)
        out = attend_explicitly(grouped, keys, values, None, scores)
    return out.reshape(len(query), 1, query.shape[1], -1), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, no_mask)


class Writer:
    """A target that writes conversations with itself."""

    def __init__(self, module: Any, script: Script, num_rows: int, length: int) -> None:
        """`module`: a causal language model with attention ATTENTION. Raises ModelError where `length` is too short."""
        if length <= len(script.start) + len(script.to_answer):
            raise ModelError(f"rows of {length} tokens end before the chat template does")
        pack(module)
        self._layers, self._readout = layers_of(module), Readout(module)
        self._device = module.get_input_embeddings().weight.device
        self._script, self._num_rows, self._length = script, num_rows, length

    @torch.inference_mode()
    def write(self, generator: torch.Generator, show: Callable[[int], None] = lambda position: None) -> Text:
        """One text of all rows, a function of the weights and `generator`; `show` hears of every position."""
        cache = RowsCache(self._num_rows, self._length)
        page = _Page(self._script, self._num_rows, self._length, self._device)
        for position in range(self._length):
            show(position)
            cache.position = position
            state = self._step(page.tokens[:, position], cache, position < len(self._script.start))
            page.hidden.append(state.to(torch.bfloat16).expand(self._num_rows, -1, -1))
            if position + 1 >= len(self._script.start):
                page.extend(self._readout(state)[:, -1], generator)
        return page.text()

    def _step(self, tokens: Tensor, cache: RowsCache, same: bool) -> Tensor:
        """Hidden states [rows, 1, hidden_size]; one row where all are the `same`."""
        tokens = tokens[:1] if same else tokens
        positions = torch.full((1, 1), cache.position, device=tokens.device)
        output = self._layers(input_ids=tokens[:, None], position_ids=positions, use_cache=False, tandem_rows=cache)
        state: Tensor = output.last_hidden_state
        return state


class _Page:
    """The rows of one text while they are written, on the target's device."""

    def __init__(self, script: Script, num_rows: int, length: int, device: torch.device) -> None:
        self.tokens = torch.zeros(num_rows, length, dtype=torch.int64, device=device)
        self.tokens[:, : len(script.start)] = torch.tensor(script.start, device=device)
        self.answers = torch.zeros_like(self.tokens, dtype=torch.bool)
        self.greedy = torch.arange(num_rows, device=device) % 2 == 0
        self.hidden: list[Tensor] = []
        self.mass = torch.zeros(0)
        self._speakers = Speakers(script, num_rows, device)

    def extend(self, logits: Tensor, generator: torch.Generator) -> None:
        """Appends what each row says next, from its logits, [rows or 1, vocabulary]."""
        answering = self._speakers.answering
        position = len(self.hidden)
        logits = logits.expand(len(self.tokens), -1)
        if position % MASS_EVERY == 0 or not len(self.mass):
            mass = answering.float() @ logits.float().softmax(-1)
            self.mass = self.mass + mass if len(self.mass) else mass
        if position < self.tokens.shape[1]:
            opening = self._speakers.opening
            drawn = _draw(_flatten(logits, opening), answering & self.greedy, opening, generator)
            self.tokens[:, position], self.answers[:, position] = self._speakers.say(drawn)

    def text(self) -> Text:
        """In main memory."""
        parts = (self.tokens.to(torch.int32), self.answers, self.greedy, torch.cat(self.hidden, 1), self.mass)
        return Text(*(part.cpu() for part in parts))


def _flatten(logits: Tensor, opening: Tensor) -> Tensor:
    return torch.where(opening[:, None], logits / OPENING_TEMPERATURE, logits) if opening.any() else logits


def _draw(logits: Tensor, greedy: Tensor, opening: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row from logits [rows, vocabulary]: the best where `greedy`, any where `opening`, else one that is
    not much less likely than the best.

    Few tokens come into question, so that all but finding them is done on those of all rows in one line.
    """
    best = logits.amax(-1, keepdim=True)
    below = torch.where(greedy, 0.0, math.log(MIN_P)).masked_fill(opening, -math.inf).to(logits)
    rows, tokens = (logits >= best + below[:, None]).nonzero(as_tuple=True)
    cumulative = (logits[rows, tokens] - best[rows, 0]).double().exp().cumsum(0)
    ends = torch.bincount(rows, minlength=len(logits)).cumsum(0)
    upper = cumulative[ends - 1]
    lower = torch.cat([upper.new_zeros(1), upper[:-1]])
    points = torch.rand(len(logits), generator=generator, dtype=torch.float64, device=generator.device).to(upper)
    points = torch.where(greedy, 0.0, points)  # of several best the first, as argmax does
    drawn = torch.searchsorted(cumulative, lower + points * (upper - lower), right=True)
    return tokens[torch.minimum(drawn, ends - 1)]
