from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.errors import InvalidRequest, ModelError, UnsupportedRequest
from tandem.model.tokenizer import load_tokenizer, pieces, render_chat, vocabulary_hash

MakeFolder = Callable[..., Path]
TEMPLATE = """{% for m in messages %}{% if m.role == 'bot' %}{{ raise_exception('no bots') }}{% endif %}{{ m.content }}
{% endfor %}{% if add_generation_prompt %}w9{% endif %}"""


def test_pieces_come_in_id_order(make_folder: MakeFolder) -> None:
    found = pieces(load_tokenizer(make_folder("llama")))
    assert found[:5] == ["<pad>", "<s>", "</s>", "w3", "w4"]
    assert len(found) == 40


def test_the_hash_tells_vocabularies_apart() -> None:
    vocabularies = [["ab", "c"], ["c", "ab"], ["a", "bc"], ["abc"], ["ab", "c", ""], ["ab", "C"], []]
    assert len({vocabulary_hash(each) for each in vocabularies}) == len(vocabularies)
    assert vocabulary_hash(["ab", "c"]) == vocabulary_hash(iter(["ab", "c"]))


def test_the_hash_takes_pieces_that_are_no_text() -> None:
    assert vocabulary_hash(["\udce2"]) != vocabulary_hash(["\udce3"])


def test_a_chat_is_rendered_up_to_where_the_answer_begins(make_folder: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_folder("llama"))
    tokenizer.chat_template = TEMPLATE
    assert render_chat(tokenizer, [{"role": "user", "content": "w5 w6"}, {"role": "user", "content": "w7"}]) == [
        5,
        6,
        7,
        9,
    ]


def test_messages_that_the_template_refuses_are_the_clients_fault(make_folder: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_folder("llama"))
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(InvalidRequest, match="no bots"):
        render_chat(tokenizer, [{"role": "bot", "content": "w5"}])


def test_a_model_without_a_template_has_no_chat(make_folder: MakeFolder) -> None:
    with pytest.raises(UnsupportedRequest, match="no chat template"):
        render_chat(load_tokenizer(make_folder("llama")), [{"role": "user", "content": "w5"}])


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("module", ["tokenizer", "resolve"])
def test_importing_does_not_bring_torch(module: str) -> None:
    code = f"import sys, tandem.model.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
