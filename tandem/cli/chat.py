"""`tandem chat`: a conversation."""

from __future__ import annotations

from contextlib import closing

from tandem.cli.client import Client, Wishes, chat_request, connect
from tandem.cli.console import err, out
from tandem.cli.options import Address, LookaheadChoice, MaxTokens, NumTokens, Seed, Temperature
from tandem.cli.painting import LEGEND, painter
from tandem.cli.result import collect
from tandem.v1 import coordinator_pb2 as pb

Messages = list[tuple[str, str]]


def chat(
    address: Address = "127.0.0.1:7070",
    max_tokens: MaxTokens = None,
    num_tokens: NumTokens = None,
    lookahead: LookaheadChoice = None,
    temperature: Temperature = 0.0,
    seed: Seed = None,
) -> None:
    """Talk with the model; Ctrl-C ends an answer, Ctrl-D the conversation."""
    wishes = Wishes(max_tokens, num_tokens, lookahead, temperature, seed)
    messages: Messages = []
    err.print(f"Ctrl-C ends an answer, Ctrl-D the conversation; {LEGEND}", style="dim")
    with connect(address) as client:
        while text := _next_turn():
            messages.append(("user", text))
            messages.append(("assistant", _answer(client, messages, wishes)))


def _next_turn() -> str | None:
    """The next line that is not blank; None at the end of the conversation."""
    while True:
        try:
            text = out.input("[bold]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            return None
        if text:
            return text


def _answer(client: Client, messages: Messages, wishes: Wishes) -> str:
    """Streams one answer. An interrupted one stays in the conversation as far as it came."""
    heard: list[str] = []
    paint = painter(out)

    def show(chunk: pb.GenerateChunk) -> None:
        heard.append(chunk.text)
        paint(chunk)

    with closing(client.generate(chat_request(messages, wishes))) as chunks:
        try:
            collect(chunks, show)
        except KeyboardInterrupt:
            out.print(" …", end="")
    out.print()
    return "".join(heard)
