"""The student learns the target's next-token distribution at every token of the target's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from tandem.distill.schedule import Stopwatch, learning_rate, seeded
from tandem.distill.shards import load_text, read_notes, save_tensors
from tandem.distill.writer import Readout, Text, fast_dtype, layers_of
from tandem.model.draft_layers import assemble

ARGMAX_WEIGHT = 0.3  # of the cross-entropy on the target's most likely token, beside the divergence
CHECKPOINT_S = 60.0
CHECKPOINT = "checkpoint.safetensors"


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over positions of KL(teacher || student), from logits over the kept ids, [positions, head_rows]."""
    return kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The divergence, and a part of the cross-entropy on the teacher's best token, of which greedy text is made."""
    return divergence(student, teacher) + ARGMAX_WEIGHT * cross_entropy(student, teacher.argmax(-1))


@dataclass(frozen=True, slots=True)
class Course:
    """How long to learn, from what, and how fast."""

    texts: Path
    indices: range  # of the texts to learn from
    budget_s: float  # of the whole distillation
    seed: int
    peak_rate: float
    num_rows: int  # of each text
    batch: int  # rows of one step


class Student:
    """The model that learns: layers and norm change, embeddings and head stay the target's."""

    def __init__(self, folder: Path, target: Path, device: str) -> None:
        self.module, kept = assemble(folder, target, torch.float32, "sdpa")
        self.module.to(device).eval()  # no dropout: there is little to learn by heart
        self.kept = torch.arange(self.module.get_output_embeddings().out_features) if kept is None else kept
        ends = {id(self.module.get_input_embeddings()), id(self.module.get_output_embeddings())}
        self._frozen_names = {f"{name}.weight" for name, part in self.module.named_modules() if id(part) in ends}
        self.weights = {name: part for name, part in self.module.named_parameters() if name not in self._frozen_names}
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name in self.weights)
        self._readout, self.device = Readout(self.module), device

    def logits(self, token_ids: Tensor, wanted: Tensor) -> Tensor:
        """[number wanted, head_rows] at the positions of `wanted`, bool [rows, length], in rows token_ids."""
        hidden = layers_of(self.module)(input_ids=token_ids.to(self.device).long(), use_cache=False).last_hidden_state
        return self._read(hidden[wanted.to(self.device)])

    @torch.no_grad()
    def teacher_logits(self, hidden: Tensor) -> Tensor:
        """What the target says over the kept ids: its head is the student's. [positions, head_rows]"""
        return self._read(hidden.to(self.device, torch.float32))

    def learned(self) -> dict[str, Tensor]:
        """The tensors of a folder of draft layers, in bfloat16."""
        state = {name: tensor for name, tensor in self.module.state_dict().items() if name not in self._frozen_names}
        return {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in state.items()}

    def _read(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._readout(hidden.unsqueeze(0))[0].float()
        return logits

    def loss(self, text: Text) -> Tensor:
        """Of all answers in `text`."""
        wanted = predicting(text)
        kind = torch.device(self.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=fast_dtype(self.device) == torch.bfloat16):
            return distillation_loss(self.logits(text.token_ids, wanted), self.teacher_logits(text.hidden[wanted]))


def predicting(text: Text) -> Tensor:
    """Bool [rows, length]: the positions whose next token is the target's word in an answer."""
    wanted = torch.zeros_like(text.answers)
    wanted[:, :-1] = text.answers[:, 1:]
    return wanted


def learn(student: Student, course: Course, watch: Stopwatch, work: Path, show: Callable[[float, float], None]) -> None:
    """Trains until the budget is spent, from the last checkpoint in `work` where there is one.

    `show` hears of the share of the learning that is done, and of the loss. The course is a function of the seed and of
    the time at which steps end.
    """
    optimiser = torch.optim.AdamW(student.weights.values(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    step, begin_s = _restore(student, optimiser, watch, work)
    saved_s = watch.spent_s
    for batch in _batches(course, step, student.device):
        progress = (watch.spent_s - begin_s) / max(course.budget_s - begin_s, 1e-9)
        if progress >= 1:
            break
        loss = _train(student, optimiser, batch, learning_rate(course.peak_rate, progress))
        step += 1
        watch.lap()
        show(progress, loss)
        if watch.spent_s - saved_s >= CHECKPOINT_S:
            _save(student, optimiser, work, {"step": step, "begin_s": begin_s, "spent_s": watch.spent_s})
            saved_s = watch.spent_s
    if step:
        _save(student, optimiser, work, {"step": step, "begin_s": begin_s, "spent_s": watch.spent_s})


def _train(student: Student, optimiser: torch.optim.Optimizer, batch: Text, rate: float) -> float:
    for group in optimiser.param_groups:
        group["lr"] = rate
    loss = student.loss(batch)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.weights.values(), 1.0)
    optimiser.step()
    return float(loss.detach())


def _batches(course: Course, step: int, device: str) -> Iterator[Text]:
    """Without end, from the `step`-th on: every pass takes texts and their rows in another order. A text is moved to
    `device` once.
    """
    while True:
        per_text = max(1, course.num_rows // course.batch)
        turn, number = divmod(step // per_text, len(course.indices))
        order = _shuffled(len(course.indices), course.seed, turn)
        text = load_text(course.texts, course.indices[order[number]], device)
        rows = _shuffled(course.num_rows, course.seed, turn, order[number])
        for index in range(step % per_text, per_text):
            yield _rows_of(text, rows[index * course.batch : (index + 1) * course.batch])
            step += 1


def _rows_of(text: Text, rows: list[int]) -> Text:
    return Text(text.token_ids[rows], text.answers[rows], text.greedy[rows], text.hidden[rows], text.mass)


def _shuffled(count: int, *key: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=seeded(*key)).tolist()
    return order


def _restore(student: Student, optimiser: torch.optim.Optimizer, watch: Stopwatch, work: Path) -> tuple[int, float]:
    """The number of steps done, and when the first began; weights, optimiser and watch are set to that state."""
    if not (work / CHECKPOINT).exists():
        return 0, watch.spent_s
    tensors, notes = load_file(work / CHECKPOINT), read_notes(work / CHECKPOINT)
    for name, parameter in student.weights.items():
        parameter.data.copy_(tensors[name])
        moments = {part: tensors[f"{name}|{part}"] for part in ("step", "exp_avg", "exp_avg_sq")}
        # The step count stays in main memory, where AdamW looks it up.
        optimiser.state[parameter] = {
            part: tensor if part == "step" else tensor.to(parameter.device) for part, tensor in moments.items()
        }
    watch.spent_s = float(notes["spent_s"])
    return int(notes["step"]), float(notes["begin_s"])


def _save(student: Student, optimiser: torch.optim.Optimizer, work: Path, notes: Mapping[str, float]) -> None:
    tensors = {name: parameter.detach() for name, parameter in student.weights.items()}
    for name, parameter in student.weights.items():
        tensors |= {f"{name}|{part}": tensor for part, tensor in optimiser.state[parameter].items()}
    save_tensors(work / CHECKPOINT, tensors, {name: repr(value) for name, value in notes.items()})
