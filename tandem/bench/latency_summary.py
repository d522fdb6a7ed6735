"""What the records of a run come to: row by row, category by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.bench import speedup
from tandem.bench.latency import Answer, Record, Run, fork
from tandem.bench.paired import Interval, median_ratio
from tandem.bench.rows import IN_TURN, PIPELINED, PLAIN, is_drafted, kind_and_length
from tandem.cli.margin import MARGIN


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the answers of one row."""

    num_tokens: int
    total_s: float
    num_later: int  # tokens behind the first ones, and in how many rounds they came
    num_rounds: int
    decode_s: float
    verify_s: float
    num_drafted: int
    num_accepted_per_position: tuple[int, ...]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Totals:
        longest = max(len(answer.num_accepted_per_position) for answer in answers)
        padded = [(*answer.num_accepted_per_position, *[0] * longest)[:longest] for answer in answers]
        return cls(
            num_tokens=sum(answer.num_tokens for answer in answers),
            total_s=sum(answer.total_s for answer in answers),
            num_later=sum(answer.num_tokens - answer.num_first for answer in answers),
            num_rounds=sum(max(answer.num_verifies - 1, 0) for answer in answers),
            decode_s=sum(answer.decode_s for answer in answers),
            verify_s=sum(answer.verify_s for answer in answers),
            num_drafted=sum(answer.num_drafted for answer in answers),
            num_accepted_per_position=tuple(map(sum, zip(*padded, strict=True))),
        )

    @property
    def acceptance(self) -> float | None:
        return sum(self.num_accepted_per_position) / self.num_drafted if self.num_drafted else None

    @property
    def tokens_per_verify(self) -> float | None:
        return self.num_later / self.num_rounds if self.num_rounds else None

    @property
    def busy(self) -> float | None:
        """Share of the decoding time in which a verify ran."""
        return self.verify_s / self.decode_s if self.decode_s else None


@dataclass(frozen=True, slots=True)
class RowSummary:
    """None: not known of this row."""

    row: str
    num_questions: int
    tokens_per_s: float
    ratio: Interval  # speed of whole answers, prompt included, to the first row's
    to_plain: Interval | None  # to Tandem's own plain decoding
    acceptance: float | None
    tokens_per_verify: float | None
    busy: float | None
    inflation: float | None  # mean verify to plain step
    gain: float | None  # tokens per second behind the first tokens, to plain
    predicted: float | None  # what that should be by formula
    of_bound: float | None  # what that is of the bound
    num_forks: int
    num_near_ties: int  # forks at which the first row's model was undecided
    num_fallbacks: int


def summarise(run: Run) -> list[RowSummary]:
    """One for each row. At least one record is needed."""
    return [_summarise_row(run, row) for row in run.rows]


def ratios_by_category(run: Run, baseline: str) -> dict[str, dict[str, Interval]]:
    """category -> row -> speed to row `baseline`; "all" comes last."""
    categories = list(dict.fromkeys(record.category for record in run.records))
    groups = {name: [record for record in run.records if record.category == name] for name in categories}
    groups["all"] = run.records
    return {name: {row: _ratio(records, row, baseline) for row in run.rows} for name, records in groups.items()}


def measured_survival(run: Run) -> list[float] | None:
    """Of the first row that drafts blocks of one length; None without such a row."""
    for row in run.rows:
        kind, length = kind_and_length(row)
        if kind in (IN_TURN, PIPELINED):
            return _survival(_totals(run, row), length)
    return None


def bound(run: Run) -> float | None:
    """Of this pair on this set-up; None where survival or costs were not measured."""
    survived = measured_survival(run)
    if survived is None or not run.probes:
        return None
    return speedup.bound(survived, speedup.costs(run.probes), _is_shared(run))


def _summarise_row(run: Run, row: str) -> RowSummary:
    totals = _totals(run, row)
    plain = _totals(run, PLAIN) if PLAIN in run.rows else None
    gain = _gain(totals, plain)
    highest = bound(run)
    forks = [record for record in run.records if fork(record, row, run.rows[0]) is not None]
    return RowSummary(
        row=row,
        num_questions=len(run.records),
        tokens_per_s=totals.num_tokens / totals.total_s,
        ratio=_ratio(run.records, row, run.rows[0]),
        to_plain=_ratio(run.records, row, PLAIN) if plain and is_drafted(row) else None,
        acceptance=totals.acceptance,
        tokens_per_verify=totals.tokens_per_verify,
        busy=totals.busy,
        inflation=_mean_verify(totals) / _mean_verify(plain) if plain and totals.verify_s else None,
        gain=gain,
        predicted=_predicted(run, row, totals),
        of_bound=gain / highest if gain and highest and is_drafted(row) else None,
        num_forks=len(forks),
        num_near_ties=sum(record.gaps.get(row, MARGIN + 1) <= MARGIN for record in forks),
        num_fallbacks=sum(record.answers[row].num_fallbacks for record in run.records),
    )


def _predicted(run: Run, row: str, totals: Totals) -> float | None:
    kind, length = kind_and_length(row)
    if kind not in (IN_TURN, PIPELINED) or not run.probes:
        return None
    survived, cost = _survival(totals, length), speedup.costs(run.probes)
    if kind == IN_TURN:
        return speedup.in_turn(survived, cost, length)
    return speedup.pipelined(survived, cost, length, _is_shared(run))


def _totals(run: Run, row: str) -> Totals:
    return Totals.of([record.answers[row] for record in run.records])


def _survival(totals: Totals, length: int) -> list[float]:
    return speedup.survival(totals.num_accepted_per_position, totals.num_drafted, length)


def _gain(totals: Totals, plain: Totals | None) -> float | None:
    if plain is None or not totals.decode_s or not plain.decode_s:
        return None
    return (totals.num_later / totals.decode_s) / (plain.num_later / plain.decode_s)


def _mean_verify(totals: Totals) -> float:
    return totals.verify_s / max(totals.num_rounds, 1)


def _ratio(records: Sequence[Record], row: str, baseline: str) -> Interval:
    own, theirs = ([record.answers[name].total_s for record in records] for name in (row, baseline))
    return median_ratio(own, theirs)


def _is_shared(run: Run) -> bool:
    return bool(run.settings["setup"] == "shared")
