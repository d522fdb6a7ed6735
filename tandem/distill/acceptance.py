"""How often the target would take what a draft proposes, measured on text that it wrote and the draft never saw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.distill.learner import Student, predicting
from tandem.distill.writer import Readout, Text

MAX_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Acceptance:
    """By position in a block: of the rounds that came as far, the share whose draft token was accepted there."""

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]  # at temperature 1, under rejection
    num_greedy: int  # positions of text behind each
    num_sampled: int


def survival(by_position: tuple[float, ...]) -> list[float]:
    """A_j, the chance that draft tokens 1..j are all accepted, for j = 1, 2, ..."""
    return torch.tensor(by_position, dtype=torch.float64).cumprod(0).tolist()


def greedy_acceptance(hits: Tensor, wanted: Tensor) -> tuple[float, ...]:
    """By position, over the rounds that decoding each row would have: after a miss or a full block the next one starts.

    hits: bool [rows, length], the draft's best token after a position is the one that follows; wanted: bool of the same
    shape, the positions that count. An accepted token is the text's own, so that one pass over the text tells all.
    """
    reached, accepted = [0] * MAX_BLOCK, [0] * MAX_BLOCK
    for row, counted in zip(hits.tolist(), wanted.tolist(), strict=True):
        place = 0
        for hit, counts in zip(row, counted, strict=True):
            if not counts:
                place = 0
                continue
            if place < MAX_BLOCK:
                reached[place] += 1
                accepted[place] += hit
            place = place + 1 if hit and place < MAX_BLOCK else 0
    return tuple(yes / all_ if all_ else 0.0 for yes, all_ in zip(accepted, reached, strict=True))


def sampled_acceptance(overlap: Tensor, wanted: Tensor) -> tuple[float, ...]:
    """By position, from overlap, float [rows, length]: sum of min(p, q) at each position of text that counts.

    A round may start anywhere; it comes to position j with the product of the overlaps before j.
    """
    come, accepted = wanted.double(), []
    for _ in range(MAX_BLOCK):
        passed = come * overlap
        accepted.append(float(passed.sum() / come.sum().clamp(min=1e-12)))
        come = torch.zeros_like(come)
        come[:, 1:] = passed[:, :-1]
        come = come * wanted
    return tuple(accepted)


@torch.no_grad()
def measure(student: Student, readout: Readout, text: Text) -> Acceptance:
    """`readout` is the target's own, with all rows of its head; student, readout and text are on one device."""
    wanted, kept = predicting(text), student.kept.to(text.token_ids.device)
    hits, overlap = torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.float64)
    for index, here in enumerate(wanted):
        if here.any():
            drafted = student.logits(text.token_ids[index : index + 1], here.unsqueeze(0))
            own = readout(text.hidden[index, here].unsqueeze(0))[0].float().softmax(-1)[:, kept]
            hits[index, here] = kept[drafted.argmax(-1)] == text.token_ids[index].roll(-1)[here]
            overlap[index, here] = torch.minimum(drafted.softmax(-1), own).sum(-1).double()
    greedy, sampled = (wanted & chosen[:, None] for chosen in (text.greedy, ~text.greedy))
    return Acceptance(
        greedy_acceptance(hits, greedy), sampled_acceptance(overlap, sampled), int(greedy.sum()), int(sampled.sum())
    )
