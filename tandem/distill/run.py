"""From a target's name to a folder with a draft and a report. Killed at any moment, it goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tandem.config import cache_folder
from tandem.distill.acceptance import Acceptance, measure
from tandem.distill.costs import measure_costs
from tandem.distill.learner import CHECKPOINT, Course, Student, learn
from tandem.distill.report import Report
from tandem.distill.schedule import WRITING_SHARE, Stopwatch, seeded
from tandem.distill.script import read_script
from tandem.distill.settings import WORK, Settings
from tandem.distill.shards import load_mass, load_text, num_texts, read_notes, save_text, shard_path
from tandem.distill.speedup import best_shared
from tandem.distill.student import Draft, kept_ids, pick_layers, read_draft, save_draft, take_layers
from tandem.distill.writer import ATTENTION, Readout, Writer, fast_dtype
from tandem.errors import ConfigError
from tandem.model.load import end_token_ids
from tandem.model.pretrained import read_config, read_model
from tandem.model.resolve import resolve
from tandem.model.tokenizer import load_tokenizer

MIN_TEXTS = 2  # the first is only measured on
REPORT = "report.json"
SEARCH_SHARE = 0.15  # of the budget, for all depths that a search tries
SEARCHED_DEPTHS = ("1", "2", "3")
SEARCHED_CUTS = (1, 2, 4, 8)  # of the head's width

Show = Callable[[str, float], None]  # what is being done, and the share of it that is done


def distill(
    settings: Settings,
    out: Path,
    minutes: float,
    *,
    device: str = "cpu",
    show: Show = lambda stage, share: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Makes, or goes on to make, a draft of settings.target in folder `out`; `minutes` in all, over all runs.

    Without minutes nothing is learned: the draft is layers of the target as they are, with a head cut to the tokens of
    the texts that are written in any case. Raises ConfigError, ModelError.
    """
    if settings.search and (settings.start or not minutes):
        raise ConfigError("search: wants minutes, and no draft to start from")
    watch = Stopwatch(clock, _spent_s(out / WORK))
    target = resolve(settings.target, cache_folder())
    return _Distillation(settings, out, target, watch, minutes * 60, device, show).run()


def _spent_s(work: Path) -> float:
    """Seconds that what lies in `work` took."""
    files = [shard_path(work, num_texts(work) - 1), *work.glob(f"*/{CHECKPOINT}")]
    return max((float(read_notes(path)["spent_s"]) for path in files if path.exists()), default=0.0)


@dataclass(frozen=True, slots=True)
class _Distillation:
    settings: Settings
    out: Path
    target: Path
    watch: Stopwatch
    budget_s: float
    device: str
    show: Show

    @property
    def work(self) -> Path:
        return self.out / WORK

    @property
    def serving_dtype(self) -> torch.dtype:
        """In which a worker on this device would run, and so what costs are measured in."""
        return torch.float32 if self.device == "cpu" else fast_dtype(self.device)

    def run(self) -> Report:
        self._write()
        folder = self.work / "student"
        if not (folder / "config.json").exists():
            save_draft(folder, self.settings.target, self._start())
        draft = read_draft(folder)
        if self.budget_s:
            draft = replace(draft, tensors=self._teach(folder, self.budget_s).learned())
        self.show("measuring", 0.0)
        save_draft(self.out, self.settings.target, draft)
        report = self._report(draft)
        report.save(self.out / REPORT)
        self.show("measuring", 1.0)
        return report

    def _write(self) -> None:
        """The target's texts, until their share of the budget is spent."""
        share_s = WRITING_SHARE * self.budget_s
        writer: Writer | None = None
        while (index := num_texts(self.work)) < MIN_TEXTS or self.watch.spent_s < share_s:
            writer = writer or self._writer()
            text = writer.write(seeded(self.settings.seed, index), partial(self._show_writing, index, share_s))
            save_text(self.work, index, text, self.watch.lap())
        self.show("writing", 1.0)

    def _show_writing(self, num_done: int, share_s: float, place: int) -> None:
        of_texts = (num_done + place / self.settings.length) / MIN_TEXTS
        self.show("writing", min(of_texts, self.watch.spent_s / share_s if share_s else 1.0))

    def _writer(self) -> Writer:
        script = read_script(load_tokenizer(self.target), self._ends())
        return Writer(self._target_module(), script, self.settings.rows, self.settings.length)

    def _target_module(self) -> Any:
        options = {"dtype": fast_dtype(self.device), "attn_implementation": ATTENTION, "use_safetensors": True}
        return read_model(self.target, **options).to(self.device).eval().requires_grad_(False)

    def _ends(self) -> frozenset[int]:
        return end_token_ids(self.target, read_config(self.target), load_tokenizer(self.target).eos_token_id)

    def _start(self) -> Draft:
        """The student before it learns."""
        if self.settings.search:
            return self._searched()
        if self.settings.start:
            return replace(read_draft(Path(self.settings.start)), kept=self._kept())
        return self._untaught(self.settings.layers)

    def _untaught(self, choice: str) -> Draft:
        layers = pick_layers(choice, read_config(self.target).get_text_config(decoder=True).num_hidden_layers)
        return Draft(take_layers(self.target, layers), layers, self._kept())

    def _searched(self) -> Draft:
        """Of several depths, each taught for a while, and widths of the head, the one of best expected speed-up."""
        last_text = shard_path(self.work, num_texts(self.work) - 1)
        begin_s = float(read_notes(last_text)["spent_s"])
        candidates: list[Draft] = []
        for number, depth in enumerate(SEARCHED_DEPTHS, 1):
            folder = self.work / f"depth-{depth}"
            if not (folder / "config.json").exists():
                save_draft(folder, self.settings.target, self._untaught(depth))
            until_s = begin_s + SEARCH_SHARE * self.budget_s * number / len(SEARCHED_DEPTHS)
            taught = replace(read_draft(folder), tensors=self._teach(folder, until_s).learned())
            widths = [len(taught.kept) // part for part in SEARCHED_CUTS]
            candidates += [taught.cut(width) for width in widths if width >= len(self._always())]
        return candidates[self._best(candidates)]

    def _best(self, candidates: Sequence[Draft]) -> int:
        folders = [self.work / f"candidate-{index}" for index in range(len(candidates))]
        for folder, draft in zip(folders, candidates, strict=True):
            save_draft(folder, self.settings.target, draft)
        costs = measure_costs(folders, self.target, self.serving_dtype, self.device)
        acceptances = [self._acceptance(folder) for folder in folders]
        speedups = [best_shared(*pair) for pair in zip(acceptances, costs, strict=True)]
        return speedups.index(max(speedups))

    def _kept(self) -> Tensor:
        """Counted over all texts but the first."""
        mass = sum((load_mass(self.work, index).double() for index in self._learned_texts()), torch.zeros(1))
        return kept_ids(mass, self._always(), self.settings.head)

    def _always(self) -> frozenset[int]:
        """Tokens that every head has."""
        return self._ends().union(load_tokenizer(self.target).all_special_ids)

    def _learned_texts(self) -> range:
        return range(1, num_texts(self.work))

    def _teach(self, folder: Path, until_s: float) -> Student:
        """The student that starts as the draft in `folder`, after what it learns until so much time is spent."""
        student = Student(folder, self.target, self.device)
        settings = self.settings
        course = Course(
            self.work, self._learned_texts(), until_s, settings.seed, settings.rate, settings.rows, settings.batch
        )
        learn(student, course, self.watch, folder, lambda share, loss: self.show(f"learning, loss {loss:.2f}", share))
        return student

    def _report(self, draft: Draft) -> Report:
        num_tokens = num_texts(self.work) * self.settings.rows * self.settings.length
        acceptance = self._acceptance(self.out)
        [costs] = measure_costs([self.out], self.target, self.serving_dtype, self.device)
        minutes = self.watch.spent_s / 60
        return Report(self.settings.target, draft.layers, len(draft.kept), minutes, num_tokens, acceptance, costs)

    def _acceptance(self, folder: Path) -> Acceptance:
        student, readout = Student(folder, self.target, self.device), Readout(self._target_module())
        return measure(student, readout, load_text(self.work, 0, self.device))
