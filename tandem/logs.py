"""Log lines of the services, as text or as JSON. No line ever holds a prompt, a text or a token id.

So a traceback is written without the messages of its exceptions: they may quote what could not be processed. Every
record is one line, plus its traceback in text; whatever a client named is escaped.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from tandem.config import LogConfig

MAX_LENGTH = 128  # of what a client named

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def set_up(settings: LogConfig) -> None:
    """All logging of this process, to standard error."""
    stream = logging.StreamHandler()
    stream.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[stream], force=True)


def log_event(logger: logging.Logger, event: str, **fields: str | int | float) -> None:
    """One line at INFO: an event and its figures."""
    logger.info(event, extra={"fields": fields})


def escaped(name: str) -> str:
    """A name that a client chose, made fit for a log: printable, and at most MAX_LENGTH characters of it."""
    return _on_one_line(name[:MAX_LENGTH])


class _Formatter(logging.Formatter):
    def formatException(self, ei: _ExcInfo) -> str:
        """Where it happened and what type it was, causes first; no message."""
        return "\n".join(_frames_and_types(ei[1])) if ei[1] is not None else ""

    @staticmethod
    def message(record: logging.LogRecord) -> str:
        """On one line. asyncio's records show whole tasks, exceptions included, behind their first line."""
        message = record.getMessage()
        return _on_one_line(message.partition("\n")[0] if record.name == "asyncio" else message)

    def exception(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class TextFormatter(_Formatter):
    """2026-01-31 12:00:00,000 logger LEVEL message key=value"""

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name}={_as_word(value)}" for name, value in _fields(record).items()]
        words = (self.formatTime(record), record.name, record.levelname, self.message(record), *fields)
        return "\n".join(filter(None, (" ".join(words), self.exception(record))))


class JsonFormatter(_Formatter):
    """One object a line: time (UTC, ISO 8601), level, logger, message, then the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
            **_fields(record),
        }
        if exception := self.exception(record):
            line["exception"] = exception
        return json.dumps(line)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _as_word(value: object) -> str:
    word = str(value)
    return word if word and " " not in word and '"' not in word else json.dumps(word)


def _on_one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _frames_and_types(error: BaseException) -> Iterator[str]:
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _frames_and_types(before)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _frames_and_types(part)
    yield "Traceback (most recent call last):"
    yield from (entry.rstrip("\n") for entry in traceback.format_tb(error.__traceback__))
    yield f"{type(error).__module__}.{type(error).__qualname__}"
