"""Tiny targets of several architectures, with a chat template and an end token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.distill import learner, run
from tandem.distill.speedup import Costs
from tandem.distill.student import Draft, read_draft
from tests.model.conftest import save_model

MakeFolder = Callable[..., Path]
CHAT_TEMPLATE = (  # of words that the tiny vocabulary has: w3 for the user, w4 for the assistant
    "{% for message in messages %} {{ 'w3' if message['role'] == 'user' else 'w4' }} {{ message['content'] }} </s>"
    "{% endfor %}{% if add_generation_prompt %} w4{% endif %}"
)


@pytest.fixture(scope="session")
def make_target(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """Saves a tiny model of an architecture; `chat`: with a template, whose text is words of its vocabulary."""
    made: dict[str, Path] = {}

    def make(architecture: str = "llama", chat: bool = True, **overrides: Any) -> Path:
        key = f"{architecture} {chat} {sorted(overrides.items())}"
        if key not in made:
            made[key] = save_model(tmp_path_factory.mktemp(architecture), architecture, **overrides)
            if chat:
                (made[key] / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        return made[key]

    return make


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _decreed(draft: Draft) -> Costs:
    return Costs(0.03 * len(draft.layers) + 0.002 * len(draft.kept), tuple(1 + 0.05 * k for k in range(1, 9)))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs by decree, as no clock is to be trusted; checkpoints after every step of two rows."""
    monkeypatch.setattr(run, "measure_costs", lambda drafts, *_: [_decreed(read_draft(folder)) for folder in drafts])
    monkeypatch.setattr(learner, "CHECKPOINT_S", 0.0)
