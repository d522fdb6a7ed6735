"""`tandem bench throughput` against a coordinator that counts: what is asked, how many at once, what comes of it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tandem.bench.throughput import (
    DRAFTED,
    PLAIN,
    PROMPTS,
    Report,
    Timeline,
    load_prompts,
    percentile,
    spread,
    summarise,
)
from tandem.bench.throughput_report import table
from tandem.cli import main
from tandem.errors import ConfigError
from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc


class Coordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Says as many tokens as it is asked for, two by two where drafts are allowed."""

    def __init__(self, has_draft: bool = True) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.num_running, self.most_running = 0, 0
        self._has_draft = has_draft
        self._lock = threading.Lock()

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        with self._lock:
            self.requests.append(request)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        step, total = 1 if is_plain(request) else 2, request.stopping.max_tokens
        for offset in range(0, total, step):
            chunk = pb.GenerateChunk(
                request_id=request.request_id, offset=offset, token_ids=[7] * step, text="a" * step
            )
            chunk.origins.extend([pb.ORIGIN_PLAIN] * step)
            if offset == 0:
                chunk.seed, chunk.target_fingerprint = 1, "f"
                chunk.prompt_token_ids.append(1)
            if offset + step >= total:
                chunk.finish.CopyFrom(finish(total, total // step))
                with self._lock:
                    self.num_running -= 1
            yield chunk

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        draft = pb.WorkerStatus(role="draft", ready=self._has_draft)
        return pb.StatusResponse(model="tiny", version="1", workers=[pb.WorkerStatus(role="target", ready=True), draft])


def is_plain(request: pb.GenerateRequest) -> bool:
    return request.speculation.HasField("num_tokens") and request.speculation.num_tokens == 0


def finish(num_tokens: int, num_verifies: int) -> pb.Finish:
    return pb.Finish(
        reason=pb.FINISH_REASON_MAX_TOKENS,
        num_prompt_tokens=1,
        num_output_tokens=num_tokens,
        speculation=pb.SpeculationStats(num_verifies=num_verifies),
    )


@contextmanager
def serving(coordinator: Coordinator) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(16))
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def run(coordinator: Coordinator, *args: str) -> int:
    with serving(coordinator) as address, pytest.raises(SystemExit) as ended:
        main(["bench", "throughput", "--address", address, *args])
    return int(ended.value.code or 0)


def test_both_ways_are_measured_in_turn_at_each_number_of_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator, path = Coordinator(), tmp_path / "result.json"
    assert run(coordinator, "--concurrency", "1,3", "--max-tokens", "8", "--json", str(path)) == 0
    result = json.loads(path.read_text())
    assert (result["model"], result["version"], result["max_tokens"]) == ("tiny", "1", 8)
    cells = [(cell["concurrency"], cell["way"]) for cell in result["cells"]]
    assert cells == [(1, "plain"), (1, "drafted"), (3, "plain"), (3, "drafted")]
    assert [cell["num_requests"] for cell in result["cells"]] == [4, 4, 6, 6]
    assert [cell["num_tokens"] for cell in result["cells"]] == [32, 32, 48, 48]
    assert [cell["tokens_per_verify"] for cell in result["cells"]] == [1, 2, 1, 2]
    assert all(0 < cell["first_token_p50_s"] <= cell["first_token_p99_s"] for cell in result["cells"])
    assert all(0 < cell["token_p50_s"] <= cell["token_p99_s"] for cell in result["cells"])
    assert coordinator.most_running <= 3
    assert "tokens/s" in capsys.readouterr().out


def test_what_is_asked_for() -> None:
    """Greedy, of a fixed length, over all categories; and no prompt meets itself under one salt."""
    coordinator = Coordinator()
    assert run(coordinator, "--concurrency", "32", "--max-tokens", "4") == 0
    for request in coordinator.requests:
        assert request.sampling.temperature == 0 and request.sampling.HasField("temperature")
        assert request.stopping.max_tokens == 4 and request.stopping.ignore_eos
    asked = Counter((request.cache_salt, request.chat.messages[0].content) for request in coordinator.requests)
    assert set(asked.values()) == {1}
    assert sum(map(is_plain, coordinator.requests)) == len(coordinator.requests) / 2 == 65


def test_without_a_draft_worker_only_plain_decoding_is_measured(tmp_path: Path) -> None:
    coordinator, path = Coordinator(has_draft=False), tmp_path / "result.json"
    assert run(coordinator, "--concurrency", "2", "--max-tokens", "4", "--json", str(path)) == 0
    assert [cell["way"] for cell in json.loads(path.read_text())["cells"]] == ["plain"]


def test_a_failing_coordinator_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "throughput", "--address", "127.0.0.1:1", "--concurrency", "1"])
    assert ended.value.code == 1 and "error: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "x", "1,,2", "0", "-1"])
def test_a_wrong_number_of_clients_is_wrong_usage(text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "throughput", "--address", "127.0.0.1:1", "--concurrency", text])
    assert ended.value.code == 2


def test_times_are_of_the_client() -> None:
    """The first token counts from the question; the others, a chunk at a time, from the first chunk."""
    quick = Timeline(10.0, [(10.5, 2), (11.0, 1), (12.5, 3)], num_verifies=3)
    slow = Timeline(10.0, [(12.0, 1)], num_verifies=1)
    assert (quick.first_token_s, quick.token_s, quick.num_tokens) == (0.5, 0.5, 6)
    assert slow.token_s is None
    cell = summarise(PLAIN, 2, [quick, slow], 3.5)
    assert (cell.tokens_per_s, cell.tokens_per_verify, cell.num_requests) == (2.0, 1.75, 2)
    assert (cell.first_token_p50_s, cell.first_token_p99_s, cell.token_p50_s, cell.token_p99_s) == (0.5, 2.0, 0.5, 0.5)


def test_percentiles() -> None:
    assert [percentile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([3.0], 0.99) == 3.0 and percentile([], 0.5) == 0.0


def test_gains_are_against_one_plain_client() -> None:
    timeline = Timeline(0.0, [(1.0, 1), (2.0, 3)], num_verifies=2)
    alone, many = summarise(PLAIN, 1, [timeline], 2.0), summarise(DRAFTED, 4, [timeline] * 4, 2.0)
    assert Report("m", "1", 4, (alone, many)).gain(many) == 4.0
    assert Report("m", "1", 4, (many,)).gain(many) is None
    assert table(Report("m", "1", 4, (alone, many))).row_count == 2


def test_the_prompts_are_four_of_each_category_and_any_beginning_of_them_is_a_mixture() -> None:
    prompts = load_prompts(PROMPTS)
    assert set(Counter(prompt.category for prompt in prompts).values()) == {4}
    assert len({prompt.name for prompt in prompts}) == len(prompts) == 52
    assert len({prompt.category for prompt in spread(prompts)[:13]}) == 13
    assert all(prompt.text for prompt in prompts)


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', '{"id": 1, "category": "x", "turns": []}'])
def test_a_broken_prompt_is_named_by_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": 1, "category": "x", "turns": ["Why?"]}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"prompts.jsonl:2: "):
        load_prompts(path)
    with pytest.raises(ConfigError):
        load_prompts(tmp_path / "missing.jsonl")
