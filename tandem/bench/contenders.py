"""What answers the questions of a latency bench: Tandem's three services, and engines in processes of their own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tandem.bench import rows
from tandem.bench.latency import Answer, Ask, Gap
from tandem.bench.peer import Peer
from tandem.bench.peer_models import float32_gguf, whole_draft
from tandem.bench.placement import Placement, pin
from tandem.bench.speedup import Probe
from tandem.cli.launch import coordinator_address, launched
from tandem.cli.local import Flags, local_config
from tandem.client import Client, Lookahead
from tandem.client.request import Options
from tandem.config import PROMPT_LOOKUP, Config
from tandem.errors import ConfigError
from tandem.model.resolve import gguf_file, resolve

PROBED = (0, 1, 2, 3, 4, 6, 8)
_PROBE_TOKENS, _PROBE_PASSES = 40, 2


@dataclass(frozen=True, slots=True)
class Pair:
    """The models, and how all engines run them."""

    target: str
    draft: str
    dtype: str
    max_tokens: int
    max_length: int  # of the longest prompt and its answer
    cache: Path


@dataclass(frozen=True, slots=True)
class Contenders:
    asks: Mapping[str, Ask]
    gap: Gap
    versions: Mapping[str, str]
    tandem: Tandem | None


class Tandem:
    """Three running services, asked one thing at a time."""

    def __init__(self, client: Client, max_tokens: int) -> None:
        self._client = client
        self._max_tokens = max_tokens

    def ask(self, ids: Sequence[int], wishes: Options, max_tokens: int = 0) -> Answer:
        """Greedy, end tokens ignored; under a salt of its own, so that nothing comes from a prefix cache."""
        tokens, first_s, num_first, began_s = list[int](), 0.0, 0, perf_counter()
        options = wishes | Options(
            temperature=0.0,
            max_tokens=max_tokens or self._max_tokens,
            ignore_eos=True,
            cache_salt=uuid.uuid4().hex,
        )
        for chunk in self._client.stream(token_ids=ids, **options):
            tokens += chunk.token_ids
            if tokens and not num_first:
                first_s, num_first = perf_counter() - began_s, len(tokens)
            if chunk.finish is not None:
                finish, total_s = chunk.finish, perf_counter() - began_s
        speculation, timing = finish.speculation, finish.timing
        return Answer(
            token_ids=tuple(tokens),
            total_s=total_s,
            first_s=first_s,
            num_first=num_first,
            num_verifies=speculation.num_verifies,
            num_drafted=speculation.num_draft_tokens,
            num_accepted_per_position=speculation.num_accepted_per_position,
            num_fallbacks=sum(speculation.num_fallbacks.values()),
            decode_s=timing.total_s - timing.first_token_s,
            verify_s=timing.verify_s - timing.prompt_s,
            draft_wait_s=timing.draft_wait_s,
        )

    def probe(self, ids: Sequence[int]) -> list[Probe]:
        """What rounds of every length cost, drafted in turn; the lengths take turns as well."""
        answers: dict[int, list[Answer]] = {length: [] for length in PROBED}
        for _ in range(_PROBE_PASSES):
            for length in PROBED:
                wishes = Options(num_draft_tokens=length, lookahead=Lookahead.OFF)
                answers[length].append(self.ask(ids, wishes, _PROBE_TOKENS))
        return [_probe(length, found) for length, found in answers.items()]


def _probe(length: int, answers: Sequence[Answer]) -> Probe:
    num_rounds = sum(answer.num_verifies - 1 for answer in answers)
    verify_s, wait_s = (sum(times) for times in zip(*((a.verify_s, a.draft_wait_s) for a in answers), strict=True))
    return Probe(length, verify_s / num_rounds, wait_s / num_rounds)


@contextmanager
def contenders(
    names: Sequence[str], pair: Pair, placement: Placement, peers: Mapping[str, Path], logs: Path
) -> Iterator[Contenders]:
    """All that `names` need, ready and idle; ended at the end. Raises TandemError where something does not start.

    transformers is always among them: it judges the forks.
    """
    with ExitStack() as stack:
        opened = _Opened(stack, pair, placement, peers, logs)
        judge = opened.transformers(with_draft=rows.ASSISTED in names)
        asks, versions, tandem = dict[str, Ask](), {rows.TRANSFORMERS: judge.version}, None
        for name in names:
            kind, length = rows.kind_and_length(name)
            if kind in rows.OWN:
                tandem = tandem or opened.tandem(with_draft=any(map(rows.is_drafted, names)))
                asks[name] = _own(tandem, name)
            elif kind in (rows.TRANSFORMERS, rows.ASSISTED):
                asks[name] = _foreign(judge, pair, assisted=kind == rows.ASSISTED)
            else:
                engine = opened.engine(name, length)
                asks[name], versions[name] = _foreign(engine, pair), engine.version

        def gap(context: Sequence[int], candidates: Sequence[int]) -> float:
            return float(judge.call("gap", context=list(context), candidates=list(candidates)))

        yield Contenders(asks, gap, versions, tandem)


@dataclass(slots=True)
class _Opened:
    """Starts processes that `stack` ends."""

    stack: ExitStack
    pair: Pair
    placement: Placement
    peers: Mapping[str, Path]
    logs: Path

    def tandem(self, with_draft: bool) -> Tandem:
        settings = _settings(self.pair, self.placement, with_draft)
        supervisor = self.stack.enter_context(launched(settings))
        pin(self.placement, supervisor.pids)
        client = self.stack.enter_context(Client(coordinator_address(settings)))
        return Tandem(client, self.pair.max_tokens)

    def transformers(self, with_draft: bool) -> Peer:
        options = {"model": str(self._target()), "draft": str(self._draft()) if with_draft else None}
        return self._start(Path(sys.executable), "transformers", options)

    def engine(self, row: str, length: int) -> Peer:
        """vLLM or llama.cpp, as `row` says."""
        if row.startswith("vllm"):
            draft = str(self._draft()) if length else None
            options = {"model": str(self._target()), "draft": draft, "num_draft_tokens": length}
            return self._start(self.peers["vllm"], "vllm", options, row)
        stored = gguf_file(self.pair.target, self.pair.cache)
        if stored is None:
            raise ConfigError(f"{row}: {self.pair.target} is no GGUF file")
        path = stored if row == rows.LLAMACPP_STORED else float32_gguf(stored, self.pair.cache)
        return self._start(self.peers["llamacpp"], "llamacpp", {"model": str(path)}, row)

    def _start(self, python: Path, engine: str, options: Mapping[str, Any], row: str = rows.TRANSFORMERS) -> Peer:
        common = {
            "threads": self.placement.num_cores,
            "dtype": self.pair.dtype,
            "max_length": self.pair.max_length,
        }
        log = self.logs / f"{row.replace(':', '-')}.log"
        return self.stack.enter_context(Peer(python, f"{engine}_engine", {**common, **options}, log))

    def _target(self) -> Path:
        return resolve(self.pair.target, self.pair.cache)

    def _draft(self) -> Path:
        if self.pair.draft == PROMPT_LOOKUP:
            raise ConfigError(f"draft: {PROMPT_LOOKUP} is no model that others could use; choose --rows without them")
        return whole_draft(resolve(self.pair.draft, self.pair.cache), self._target(), self.pair.cache)


def _own(tandem: Tandem, row: str) -> Ask:
    wishes = rows.options(row)
    return lambda ids: tandem.ask(ids, wishes)


def _foreign(peer: Peer, pair: Pair, **options: Any) -> Ask:
    def ask(ids: Sequence[int]) -> Answer:
        found = peer.call("generate", ids=list(ids), max_tokens=pair.max_tokens, **options)
        return Answer(**{**found, "token_ids": tuple(found["token_ids"])})

    return ask


def _settings(pair: Pair, placement: Placement, with_draft: bool) -> Config:
    """Free ports throughout: it must run beside whatever runs already."""
    any_port = {"port": 0, "metrics_port": 0}
    flags: Flags = {
        "model": {"target": pair.target, "draft": pair.draft if with_draft else "", "dtype": pair.dtype},
        "coordinator": any_port,
        "draft": {**any_port, "threads": placement.draft_threads},
        "target": {**any_port, "threads": placement.target_threads},
    }
    return local_config(None, flags, with_draft=with_draft, num_cores=placement.num_cores)
