"""`tandem generate`: one request, streamed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tandem.cli.client import Wishes, chat_request, connect, text_request
from tandem.cli.console import out
from tandem.cli.options import Address, JsonFile, LookaheadChoice, MaxTokens, NumTokens, Seed, Stop, Temperature
from tandem.cli.painting import painter
from tandem.cli.result import collect, write_json

Prompt = Annotated[str | None, typer.Argument(help="Read from standard input when left out.")]
AsChat = Annotated[bool, typer.Option("--chat/--raw", help="A chat turn, or text to continue as it is.")]


def generate(
    prompt: Prompt = None,
    address: Address = "127.0.0.1:7070",
    chat: AsChat = True,
    max_tokens: MaxTokens = None,
    num_tokens: NumTokens = None,
    lookahead: LookaheadChoice = None,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    json: JsonFile = None,
) -> None:
    """Generate from one prompt and stream the text."""
    text = sys.stdin.read() if prompt is None else prompt
    wishes = Wishes(max_tokens, num_tokens, lookahead, temperature, seed, tuple(stop or ()))
    request = chat_request([("user", text)], wishes) if chat else text_request(text, wishes)
    with connect(address) as client:
        try:
            result = collect(client.generate(request), painter(out))
        finally:
            out.print()  # an error must not follow on the same line as the text
    if json:
        write_json(json, result.as_json())
