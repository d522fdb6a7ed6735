"""A latency run as tables, as Markdown and as a picture. The run itself is the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from tandem.bench import speedup
from tandem.bench.latency import Run
from tandem.bench.latency_summary import RowSummary, bound, measured_survival, ratios_by_category, summarise
from tandem.bench.rows import OWN, PLAIN, is_drafted, kind_and_length

_SPEEDS = ("row", "tokens/s", "ratio", "to plain", "forks", "fallbacks")
_SPEEDS_LEGEND = (
    "ratio: speed of whole answers to the first row's, median of pairs and its 95 % interval; to plain: the same to "
    "Tandem's own plain decoding; forks: answers that differ from the first row's, near ties among them in brackets; "
    "fallbacks: verifies without the draft that was wanted"
)
_FACTORS = ("row", "acceptance", "tokens/verify", "busy", "inflation", "gain", "predicted", "of bound")
_FACTORS_LEGEND = (
    "behind the first tokens of each answer; busy: share of the time in which a verify ran; inflation: mean verify to "
    "plain step; gain: tokens/s to plain; predicted: the gain by formula; of bound: the gain as a share of the most "
    "that this pair can give"
)


def tables(run: Run) -> list[Table]:
    """Speeds, what they are made of, and the categories. At least one record is needed."""
    found = summarise(run)
    return [
        _table(_title(run), _SPEEDS, map(_speeds, found), _SPEEDS_LEGEND),
        _table("Factors", _FACTORS, map(_factors, found), _FACTORS_LEGEND),
        *(_table(title, columns, body) for title, columns, body in _by_category(run)),
    ]


def markdown(run: Run) -> str:
    """The same tables with how they came about, to be pasted into a document."""
    found = summarise(run)
    parts = [
        f"**{_title(run)}**",
        "\n".join(f"* {name}: {value}" for name, value in run.about.items()),
        _markdown_table(_SPEEDS, map(_speeds, found)),
        _sentence(_SPEEDS_LEGEND),
        _markdown_table(_FACTORS, map(_factors, found)),
        _sentence(_FACTORS_LEGEND),
        *_costs(run),
    ]
    for title, columns, body in _by_category(run):
        parts += [f"{title}:", _markdown_table(columns, body)]
    return "\n\n".join(parts) + "\n"


def draw(run: Run, path: Path) -> None:
    """A PNG: the ratio of every row with its interval. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = list(reversed(summarise(run)))
    middles = [row.ratio.median for row in found]
    reach = [[row.ratio.median - row.ratio.low for row in found], [row.ratio.high - row.ratio.median for row in found]]
    figure, axis = pyplot.subplots(figsize=(8, 1 + 0.4 * len(found)))
    colours = ["C0" if kind_and_length(row.row)[0] in OWN else "C7" for row in found]
    axis.barh([row.row for row in found], middles, xerr=reach, color=colours, capsize=3)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set(xlabel=f"speed of whole answers to that of {run.rows[0]}: median of pairs, 95 % interval")
    axis.set_title(_title(run), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _title(run: Run) -> str:
    settings = run.settings
    return (
        f"{settings['target']} with {settings['draft']}, {settings['dtype']}, set-up {settings['setup']}, "
        f"{len(run.records)} questions, {settings['max_tokens']} tokens each"
    )


def _speeds(row: RowSummary) -> list[str]:
    return [
        row.row,
        f"{row.tokens_per_s:.1f}",
        str(row.ratio),
        "" if row.to_plain is None else str(row.to_plain),
        f"{row.num_forks} ({row.num_near_ties})" if row.num_forks else "0",
        str(row.num_fallbacks),
    ]


def _factors(row: RowSummary) -> list[str]:
    known = (row.acceptance, row.tokens_per_verify, row.busy, row.inflation, row.gain, row.predicted, row.of_bound)
    return [row.row, *("" if value is None else f"{value:.2f}" for value in known)]


def _by_category(run: Run) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """(title, columns, rows of cells): every row to the first, then Tandem's to its own plain."""
    own = [row for row in run.rows if is_drafted(row)]
    for baseline, rows in ((run.rows[0], run.rows[1:]), (PLAIN, own)):
        if baseline in run.rows and rows:
            ratios = ratios_by_category(run, baseline)
            body = [[name, *(f"{found[row].median:.2f}" for row in rows)] for name, found in ratios.items()]
            yield f"Speed to {baseline} by category, median of pairs", ("category", *rows), body


def _costs(run: Run) -> list[str]:
    """What the predictions are made of."""
    survived, highest = measured_survival(run), bound(run)
    if survived is None or highest is None:
        return []
    cost = speedup.costs(run.probes)
    return [
        f"Step {1e3 * cost.step_s:.1f} ms; in steps: draft step c {cost.draft:.2f}, call r {cost.call:.3f}, verify of "
        f"1..{speedup.LONGEST} draft tokens {_list(cost.verify[1:])}; survival {_list(survived)}; bound {highest:.2f}."
    ]


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _table(title: str, columns: Sequence[str], body: Iterable[Sequence[str]], caption: str = "") -> Table:
    result = Table(*columns, title=title, caption=caption, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in result.columns[1:]:
        column.justify = "right"
    for cells in body:
        result.add_row(*cells)
    return result


def _markdown_table(columns: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *body))
