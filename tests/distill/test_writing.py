"""What the target writes is its own: greedy answers are its argmax, drawn tokens are likely, hidden states exact."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.distill import script
from tandem.distill.schedule import seeded
from tandem.distill.script import Script, Speakers, read_script
from tandem.distill.writer import ATTENTION, MIN_P, OPENING_TEMPERATURE, Readout, Text, Writer
from tandem.errors import ModelError
from tandem.model.pretrained import read_model
from tandem.model.tokenizer import load_tokenizer
from tests.distill.conftest import MakeFolder

SCRIPT = Script(start=(3,), to_answer=(2, 4), to_next=(2, 3), ends=frozenset({2}))
ROWS, LENGTH, BRIEF = 4, 40, 5
ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma3_text", "gpt_neox", "gpt2"]


@pytest.fixture(autouse=True)
def brief_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MAX_USER_TOKENS", BRIEF)


def written(folder: Path, seed: int = 0, length: int = LENGTH) -> Text:
    module = read_model(folder, dtype=torch.float64, attn_implementation=ATTENTION).eval()
    return Writer(module, read_script(load_tokenizer(folder), frozenset({2})), ROWS, length).write(seeded(seed))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_what_the_model_says(make_target: MakeFolder, architecture: str) -> None:
    """Family: a cache that is written in the wrong place, or a window that hides the wrong positions."""
    folder = make_target(architecture)
    text = written(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = reference(text.token_ids.long()).logits
    follows = text.token_ids[:, 1:].long()
    own = text.answers[:, 1:]
    assert own.sum() > ROWS
    greedy = own & text.greedy[:, None]
    assert torch.equal(logits[:, :-1].argmax(-1)[greedy], follows[greedy])
    probabilities = logits[:, :-1].softmax(-1)
    chosen = probabilities.gather(-1, follows[:, :, None])[:, :, 0]
    assert (chosen >= 0.99 * MIN_P * probabilities.amax(-1))[own].all()


def test_users_begin_with_what_is_less_likely(make_target: MakeFolder) -> None:
    """The first tokens of a turn come from the whole distribution, flattened; seen over many rows at once."""
    folder = make_target()
    module = read_model(folder, dtype=torch.float64, attn_implementation=ATTENTION).eval()
    writer = Writer(module, read_script(load_tokenizer(folder), frozenset({2})), 4000, 4)
    opened = writer.write(seeded(0)).token_ids[:, 1].long()
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        expected = (reference(torch.tensor([[3]])).logits[0, -1] / OPENING_TEMPERATURE).softmax(-1)
    found = opened.bincount(minlength=len(expected)) / len(opened)
    assert (found - expected).abs().sum() / 2 < 0.05


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt2"])
def test_hidden_states_are_what_the_head_reads(make_target: MakeFolder, architecture: str) -> None:
    folder = make_target(architecture)
    text = written(folder)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        expected = module(text.token_ids.long()).logits
        found = Readout(module)(text.hidden.double())
    assert (found - expected).norm() < 0.01 * expected.norm()  # the states were rounded to bfloat16


def test_soft_caps_of_the_logits_are_read_out_too(make_target: MakeFolder) -> None:
    capped = make_target("gemma2", sliding_window=8, final_logit_softcapping=0.5)
    module = AutoModelForCausalLM.from_pretrained(capped, dtype=torch.float64).eval()
    ids = torch.tensor([[5, 9, 30]])
    with torch.inference_mode():
        hidden = module.model(ids).last_hidden_state
        torch.testing.assert_close(Readout(module)(hidden), module(ids).logits)
    text = written(capped)
    assert text.answers.any()


def test_the_text_is_a_function_of_the_seed(make_target: MakeFolder) -> None:
    folder = make_target()
    first, again, other = written(folder, 1), written(folder, 1), written(folder, 2)
    for name in ("token_ids", "answers", "hidden", "mass"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.token_ids, other.token_ids)


def test_the_mass_is_of_probabilities(make_target: MakeFolder) -> None:
    text = written(make_target())
    assert (text.mass >= 0).all()
    assert text.mass.sum() > 1


def test_a_model_without_a_template_writes_from_its_first_token(make_target: MakeFolder) -> None:
    text = written(make_target(chat=False))
    assert text.token_ids[:, 0].tolist() == [1] * ROWS
    assert text.answers[:, 1:].float().mean() > 0.8


def test_rows_that_the_template_fills_are_refused(make_target: MakeFolder) -> None:
    with pytest.raises(ModelError, match="rows of 3 tokens"):
        written(make_target(), length=3)


class Speaker:
    """One row among others that say other things."""

    def __init__(self, script: Script) -> None:
        self._speakers = Speakers(script, 3, torch.device("cpu"))

    @property
    def opening(self) -> bool:
        return bool(self._speakers.opening[1])

    @property
    def answering(self) -> bool:
        return bool(self._speakers.answering[1])

    def say(self, drawn: int) -> tuple[int, bool]:
        tokens, answers = self._speakers.say(torch.tensor([2, drawn, 15]))
        return int(tokens[1]), bool(answers[1])


def test_turns_follow_the_template() -> None:
    speaker = Speaker(SCRIPT)
    said = [speaker.say(drawn) for drawn in (7, 8, 2, 9, 9, 11, 2, 9, 12)]
    assert said == [
        (7, False),
        (8, False),
        (2, False),
        (4, False),
        (9, True),
        (11, True),
        (2, True),
        (3, False),
        (12, False),
    ]


def test_only_users_open_their_turns() -> None:
    speaker, opening = Speaker(SCRIPT), list[bool]()
    for drawn in (7, 8, 9, 2, 9, 9, 11, 2, 9, 7, 12):
        opening.append(speaker.opening)
        speaker.say(drawn)
    assert [index for index, opens in enumerate(opening) if opens] == [0, 1, 9, 10]


def test_another_end_token_is_learned_and_then_the_template_goes_on() -> None:
    speaker = Speaker(Script((3,), (2, 4), (2, 3), frozenset({2, 0})))
    for drawn in (7, 2, 9):
        speaker.say(drawn)
    assert speaker.answering
    assert [speaker.say(drawn) for drawn in (0, 9, 9, 12)] == [(0, True), (2, False), (3, False), (12, False)]


def test_a_user_without_end_is_cut_short() -> None:
    speaker = Speaker(SCRIPT)
    said = [speaker.say(7)[0] for _ in range(BRIEF + 3)]
    assert said == [7] * BRIEF + [2, 4, 7]


def test_scripts_come_from_the_template(make_target: MakeFolder) -> None:
    found = read_script(load_tokenizer(make_target()), frozenset({2}))
    assert (found.start, found.to_answer, found.to_next) == ((3,), (2, 4), (2, 3))


def test_a_template_that_hides_messages_is_refused(make_target: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_target())
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] }}{% endfor %}"
    with pytest.raises(ModelError, match="chat template"):
        read_script(tokenizer, frozenset())
