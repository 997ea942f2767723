"""load_model against transformers' own models with the same values unpacked."""

from __future__ import annotations

import math
import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_gguf import (
    SIZES,
    TEMPLATE,
    build,
    byte_level_vocabulary,
    gguf_name,
    interleave_heads,
    run_python,
    smollm2_path,
    write_model,
)
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from torch_qmm import Format, QuantEmbedding, QuantLinear, models
from torch_qmm.gguf import GGUFError, GGUFFile
from torch_qmm.models import ModelLoadError, load_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# architecture in the file, model type in transformers, configuration, further metadata
CASES = {
    "llama": ("llama", "llama", {"tie_word_embeddings": True}, {}),
    "llama-untied": ("llama", "llama", {"tie_word_embeddings": False, "rms_norm_eps": 1e-5}, {}),
    "llama-biases": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama-heads": ("llama", "llama", {"num_key_value_heads": 4, "head_dim": 32}, {"llama.attention.key_length": 32}),
    "llama-linear": (
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "mistral": ("llama", "mistral", {"sliding_window": None}, {}),
    "mistral-window": ("llama", "mistral", {"sliding_window": 5}, {"llama.attention.sliding_window": 5}),
    "qwen2": ("qwen2", "qwen2", {"tie_word_embeddings": True}, {}),
    "qwen2-yarn": (
        "qwen2",
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_theta": 10_000.0,
            }
        },
        {
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 32,
            "qwen2.rope.scaling.finetuned": True,
        },
    ),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32, "tie_word_embeddings": False}, {}),
    "gemma2": (
        "gemma2",
        "gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 5,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
        {},
    ),
    # the number of layers is all that tells the 27B model, which scales attention by hidden size per head
    "gemma2-27b": (
        "gemma2",
        "gemma2",
        {
            "num_hidden_layers": 46,
            "head_dim": 32,
            "query_pre_attn_scalar": SIZES["hidden_size"] // SIZES["num_attention_heads"],
            "sliding_window": 5,
        },
        {},
    ),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5, "num_hidden_layers": 7},
        {},
    ),
    "gemma3-linear": (
        "gemma3",
        "gemma3_text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
            },
        },
        {
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
            "gemma3.rope.freq_base_swa": 20_000.0,
            "gemma3.attention.sliding_window_pattern": [True, False],
        },
    ),
}
IDS = torch.tensor([list(range(3, 63)), list(range(100, 40, -1))])


def write_case(case: str, folder: Path, **options) -> tuple[Path, nn.Module]:
    architecture, model_type, config, metadata = CASES[case]
    reference = build(model_type, **config)
    path = folder / f"{case}.gguf"
    write_model(path, reference, architecture, metadata=metadata | options.pop("metadata", {}), **options)
    return path, reference


@torch.inference_mode()
def difference(model: nn.Module, reference: nn.Module) -> float:
    return (model(IDS).logits - reference(IDS).logits).abs().max().item()


SLOW_CASES = {"gemma2-27b": pytest.mark.slow}


@pytest.mark.parametrize("case", [pytest.param(case, marks=SLOW_CASES.get(case, ())) for case in CASES])
def test_logits_match_the_unpacked_model(case, tmp_path):
    path, reference = write_case(case, tmp_path)
    model, tokenizer = load_model(path)
    assert tokenizer is None
    assert not model.training
    assert reference(IDS).logits.std() > 0.3
    assert difference(model, reference) < 1e-4


@pytest.mark.parametrize("case", ["llama", "llama-biases", "mistral"])
def test_the_order_of_q_and_k_rows_matters(case, tmp_path, monkeypatch):
    path, reference = write_case(case, tmp_path)
    monkeypatch.setattr(models, "_restore_rows", lambda rows, heads: rows)
    assert difference(load_model(path)[0], reference) > 1e-2


def llama3_factors(head_dim: int) -> np.ndarray:
    """The factors that llama.cpp's converter writes for Llama 3.1's frequencies."""
    rope, factors = LLAMA3_ROPE, []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (low * rope["low_freq_factor"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors)


def test_llama3_frequency_factors_are_honoured(tmp_path):
    reference = build("llama", rope_parameters=LLAMA3_ROPE)
    path = tmp_path / "llama3.gguf"
    write_model(path, reference, "llama", tensors={"rope_freqs.weight": llama3_factors(16)})
    model, _ = load_model(path)
    assert difference(model, reference) < 1e-4
    write_model(path, reference, "llama")
    assert difference(load_model(path)[0], reference) > 1e-2


def test_matrices_stay_packed_in_their_formats_and_nothing_else_is_left(tmp_path):
    path, _ = write_case("qwen2", tmp_path)
    model, _ = load_model(path)
    with GGUFFile(path) as file:
        formats = {name: info.format for name, info in file.tensors.items() if len(info.shape) == 2}
        nbytes = file.nbytes
    loaded = {
        gguf_name(f"{name}.weight", "qwen2"): module.format
        for name, module in model.named_modules()
        if isinstance(module, QuantLinear | QuantEmbedding) and name != "lm_head"
    }
    assert loaded == formats
    assert {Format.F32, Format.F16, Format.BF16, Format.Q4_0} <= set(loaded.values())
    assert sum(p.nbytes for p in model.parameters()) == nbytes
    assert not [n for n, m in model.named_modules() if type(m) in (nn.Linear, nn.Embedding)]
    assert not [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]


def test_a_tied_head_shares_the_bytes_of_the_embedding(tmp_path):
    tied, _ = load_model(write_case("llama", tmp_path)[0])
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    untied, _ = load_model(write_case("llama-untied", tmp_path)[0])
    assert untied.lm_head.weight.data_ptr() != untied.model.embed_tokens.weight.data_ptr()


def test_weights_are_views_of_the_file(tmp_path):
    path, _ = write_case("llama", tmp_path)
    with GGUFFile(path) as file:
        offsets = [file.tensors[f"blk.0.{name}.weight"].offset for name in ("ffn_up", "ffn_down")]
        model, _ = load_model(path)
    path.unlink()
    mlp = model.model.layers[0].mlp
    assert mlp.down_proj.weight.data_ptr() - mlp.up_proj.weight.data_ptr() == offsets[1] - offsets[0]
    assert model(IDS).logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_half_dtypes(case, dtype, tmp_path):
    path, reference = write_case(case, tmp_path)
    model, _ = load_model(path, dtype=dtype)
    floats = {p.dtype for p in model.parameters()} - {torch.uint8}
    assert floats == {dtype}
    logits, want = model(IDS).logits, reference(IDS).logits
    assert logits.dtype == dtype
    assert (logits.float() - want).norm() / want.norm() < 0.1


def test_another_dtype_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"dtype: got torch.float64, want float32, float16 or bfloat16"):
        load_model(tmp_path / "none.gguf", dtype=torch.float64)


def test_a_split_model_loads(tmp_path):
    reference = build("llama")
    whole = tmp_path / "whole.gguf"
    write_model(whole, reference, "llama")
    names = [name for name, _ in GGUFFile(whole).items()]
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for i, path in enumerate(parts):
        split = {"split.no": i, "split.count": 2, "split.tensors.count": len(names)}
        write_model(path, reference, "llama", metadata=split, skip=names[i::2])
    assert difference(load_model(parts[0])[0], reference) < 1e-4


def test_generation_is_that_of_the_unpacked_model(tmp_path):
    path, reference = write_case("qwen3", tmp_path)
    model, _ = load_model(path)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert model.generate(IDS, **options).tolist() == reference.generate(IDS, **options).tolist()


def test_progress_is_shown_when_asked(tmp_path, capfd):
    path, _ = write_case("llama", tmp_path)
    load_model(path)
    assert capfd.readouterr().err == ""
    load_model(path, progress=True)
    assert "loading: 100%" in capfd.readouterr().err


# --- refusals ---

FAULTS = {
    "missing key": ({"llama.block_count": None}, r"'llama.block_count': got nothing, want one int"),
    "type": ({"llama.block_count": "two"}, r"'llama.block_count': got 'two', want one int"),
    "per-layer": ({"llama.attention.head_count": [4, 2]}, r"head_count': got array\(\[4, 2\].*want one int"),
    "zero": ({"llama.attention.head_count": 0}, r"head_count': got 0, want a size from 1"),
    "odd heads": ({"llama.rope.dimension_count": 15}, r"'llama.rope.dimension_count': got 15, want an even number"),
    "frequency": ({"llama.rope.freq_base": 0.0}, r"'llama.rope.freq_base': got 0.0, want a finite number above 0"),
    "scaling": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -2.0},
        r"'llama.rope.scaling.factor': got -2.0, want a finite number above 0",
    ),
    "layers": (
        {"llama.block_count": 10**9},
        r"block_count': got 1000000000, want at most \d+, the tensors in the file",
    ),
    "experts": ({"llama.expert_count": 8}, r"'llama.expert_count': got 8, want 0"),
    "partial rotary": (
        {"llama.rope.dimension_count": 8, "llama.attention.key_length": 16},
        r"dimension_count': got 8, want 16",
    ),
    "longrope": (
        {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0},
        r"'llama.rope.scaling.type': got 'longrope', want 'none', 'linear' or 'yarn'",
    ),
    "yarn in parts": (
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 2.0,
            "llama.rope.scaling.yarn_ext_factor": 0.5,
        },
        r"'llama.rope.scaling.yarn_ext_factor': got 0.5, want no such key",
    ),
    "unknown key": ({"llama.logit_scale": 0.5}, r"'llama.logit_scale': got 0.5, want no such key: this loader"),
    "hidden size": (
        {"llama.embedding_length": 128},
        r"tensor 'token_embd.weight': got shape \[128, 64\], want \[128, 128\]",
    ),
    "refused by transformers": (
        {"llama.embedding_length": 65, "llama.rope.dimension_count": 16},
        r"transformers refuses the metadata: [^$]*hidden size \(65\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_metadata_that_does_not_fit_is_named(fault, tmp_path):
    metadata, message = FAULTS[fault]
    path = tmp_path / "bad.gguf"
    write_model(path, build("llama"), "llama", metadata=metadata)
    with pytest.raises(ModelLoadError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)


def test_an_unknown_architecture_is_named(tmp_path):
    path, _ = write_case("llama", tmp_path)
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    want = r"'general.architecture': got 'mamba', want one of llama, qwen2, qwen3, gemma2, gemma3"
    with pytest.raises(ModelLoadError, match=want):
        load_model(path)


def test_a_missing_tensor_is_named(tmp_path):
    path, _ = write_case("llama", tmp_path, skip=["blk.1.ffn_up.weight"])
    with pytest.raises(ModelLoadError, match=r"no tensor 'blk.1.ffn_up.weight' for .*layers.1.mlp.up_proj.weight"):
        load_model(path)


def test_a_tensor_without_a_place_is_named(tmp_path):
    path, _ = write_case("llama", tmp_path, tensors={"blk.0.extra.weight": np.ones(4)})
    with pytest.raises(ModelLoadError, match=r"tensors 'blk.0.extra.weight' have no place in a llama model"):
        load_model(path)


def test_rope_factors_that_do_not_fit_are_named(tmp_path):
    path, _ = write_case("llama", tmp_path, tensors={"rope_freqs.weight": np.ones(4)})
    with pytest.raises(ModelLoadError, match=r"'rope_freqs.weight': got shape \[4\], want \[8\]"):
        load_model(path)
    path, _ = write_case("llama", tmp_path, tensors={"rope_freqs.weight": np.zeros(8)})
    with pytest.raises(ModelLoadError, match=r"'rope_freqs.weight': got factors down to 0.0, want them above 0"):
        load_model(path)
    path, _ = write_case("gemma3", tmp_path, tensors={"rope_freqs.weight": np.ones(16)})
    with pytest.raises(ModelLoadError, match=r"'rope_freqs.weight': got shape \[16\], want none in this arch"):
        load_model(path)


def test_a_damaged_file_is_a_gguf_error(tmp_path):
    path, _ = write_case("llama", tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GGUFError, match="want them inside the file"):
        load_model(path)


def test_flipped_bytes_of_metadata_give_a_model_or_a_clear_error(tmp_path):
    whole = write_with_vocabulary("gpt2", tmp_path).read_bytes()
    path = tmp_path / "flip.gguf"
    # all but the vocabulary's texts: they are most of the metadata and can hold any byte
    head = range(24, whole.index(b"tokenizer.ggml.tokens"))
    tail = range(whole.index(b"tokenizer.ggml.token_type"), whole.index(b"token_embd.weight"))
    rng = random.Random(7)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.choice(rng.choice((head, tail)))] = rng.choice((rng.randrange(256), 0, 1, 0xFF))
        path.write_bytes(damaged)
        try:
            load_model(path)
        except (GGUFError, ModelLoadError):
            refused += 1
    assert 50 < refused < 200


# --- tokenizers and configurations, against what transformers makes of the same file ---

TEXTS = [
    "Hello world",
    " leading and  double  spaces ",
    "numbers 2024 and 3.14159, it's they'll WE'RE",
    "grüße, 你好 🙂",
    "line\n\n\tbreaks\r\n",
    "<s>special</s> and <|im_end|>",
    "",
]
WORDS = ["he", "hel", "hell", "hello", "▁", "▁w", "▁wo", "or", "ld", "wor", "▁a", "an", "and", "th", "▁th", "in"]


def sentencepiece_vocabulary() -> dict[str, object]:
    special = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    fallback = [f"<0x{i:02X}>" for i in range(256)]
    letters = [chr(c) for c in range(33, 127)]
    tokens = special + fallback + letters + WORDS
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, 4] + [6] * 256 + [1] * (len(letters) + len(WORDS)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


VOCABULARIES = {
    "gpt2": ("llama", byte_level_vocabulary, {}),
    "gpt2 split for qwen2": ("qwen2", byte_level_vocabulary, {"tokenizer.ggml.pre": "qwen2"}),
    "gpt2 that begins texts": (
        "llama",
        byte_level_vocabulary,
        {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True},
    ),
    "sentencepiece": ("llama", sentencepiece_vocabulary, {}),
    "sentencepiece of gemma": ("gemma2", sentencepiece_vocabulary, {"tokenizer.ggml.add_bos_token": True}),
}


def write_with_vocabulary(name: str, folder: Path) -> Path:
    architecture, vocabulary, more = VOCABULARIES[name]
    pairs = vocabulary() | more | {"tokenizer.chat_template": TEMPLATE}
    _, model_type, config, metadata = CASES[architecture]
    reference = build(model_type, **(config | {"vocab_size": len(pairs["tokenizer.ggml.tokens"])}))
    path = folder / "model.gguf"
    write_model(path, reference, architecture, metadata=metadata | pairs)
    return path


def assert_same_tokenizer(ours, theirs) -> None:
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.added_tokens_decoder == theirs.added_tokens_decoder
    assert ours.chat_template == theirs.chat_template
    chat = [{"role": "user", "content": "Hello world"}]
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_tokenizer_is_that_of_transformers(name, tmp_path):
    path = write_with_vocabulary(name, tmp_path)
    assert_same_tokenizer(load_model(path)[1], AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name))


# What the loader reads from the file where transformers takes a default. Ids that the file lacks are such, too:
# None here, while transformers keeps those of the first model of the kind.
NOT_COMPARED = {
    "llama": set(),
    "qwen2": {"head_dim"},
    "gemma2": {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"},
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_configuration_is_that_of_transformers(name, tmp_path):
    path = write_with_vocabulary(name, tmp_path)
    ours = load_model(path)[0].config.to_dict()
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name).to_dict()
    assert_same_configuration(ours, theirs, NOT_COMPARED[VOCABULARIES[name][0]])


def assert_same_configuration(ours: dict, theirs: dict, left_out: set[str]) -> None:
    left_out = left_out | {"_model_name_or_path", "dtype", "architectures", "unk_token_id", "_name_or_path"}
    left_out |= {key for key in ours if key.endswith("_token_id") and ours[key] is None}
    keys = (ours.keys() | theirs.keys()) - left_out
    assert {k: ours.get(k) for k in keys} == {k: theirs.get(k) for k in keys}


def test_a_special_token_outside_the_vocabulary_is_named(tmp_path):
    metadata = byte_level_vocabulary() | {"tokenizer.ggml.eos_token_id": 9999}
    path = tmp_path / "model.gguf"
    write_model(path, build("llama", vocab_size=271), "llama", metadata=metadata)
    with pytest.raises(ModelLoadError, match=r"'tokenizer.ggml.eos_token_id': got 9999, want one of 271 tokens"):
        load_model(path)


def test_a_vocabulary_that_is_none_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    vocabulary = byte_level_vocabulary()
    reference = build("llama", vocab_size=len(vocabulary["tokenizer.ggml.tokens"]))
    write_model(path, reference, "llama", metadata=vocabulary | {"tokenizer.ggml.tokens": [1, 2, 3]})
    with pytest.raises(ModelLoadError, match=r"'tokenizer.ggml.tokens': got no texts, want an array of them"):
        load_model(path)
    write_model(path, reference, "llama", metadata=vocabulary | {"tokenizer.ggml.model": "unheard-of"})
    with pytest.raises(ModelLoadError, match=r"can make no tokenizer of the metadata: .*'unheard-of'"):
        load_model(path)
    write_model(path, reference, "llama", metadata=vocabulary | {"tokenizer.ggml.merges": [1, 2]})
    with pytest.raises(ModelLoadError, match=r"can make no tokenizer of the metadata"):
        load_model(path)


def test_generation_ends_at_every_token_that_ends_a_turn(tmp_path):
    model, tokenizer = load_model(write_with_vocabulary("gpt2", tmp_path))
    assert tokenizer.convert_ids_to_tokens([0, 2]) == ["<|endoftext|>", "<|im_end|>"]
    assert model.generation_config.eos_token_id == [0, 2]
    assert model.generation_config.pad_token_id == 0
    model, _ = load_model(write_with_vocabulary("sentencepiece", tmp_path))
    assert model.generation_config.eos_token_id == [2, 3]
    assert model.generation_config.pad_token_id == 2


# --- the real model ---

PROMPT = (
    "The history of the metric system began during the Age of Enlightenment with measures of length and weight "
    "derived from nature, along with their decimal multiples and fractions. The system became the standard of "
    "France and Europe within half a century. Other measures with unity ratios were added, and it went on to be "
    "adopted across the world. The first practical realisation of the metric system came in 1799, during the "
    "French Revolution, after the existing system of measures had become impractical for trade, and was replaced "
    "by a decimal system based on the kilogram and the metre. The basic units were taken from the natural world. "
    "The unit of length, the metre, was based on the dimensions of the Earth, and the unit of mass, the kilogram, "
    "was based on the mass of a volume of water of one litre."
)


@pytest.fixture(scope="module")
def smollm2():
    return load_model(smollm2_path())


def unpacked_smollm2(config) -> nn.Module:
    """The same model with every value unpacked by gguf-py."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    names = {gguf_name(name, "llama"): parameter for name, parameter in model.named_parameters()}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    with torch.no_grad():
        for tensor in gguf.GGUFReader(smollm2_path()).tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            n = heads.get(tensor.name.split(".")[-2])
            if n:  # the inverse of interleave_heads
                order = np.argsort(interleave_heads(np.arange(len(values)), n))
                values = values[order]
            names.pop(tensor.name).copy_(torch.from_numpy(values.copy()))
    assert not names
    return model


def test_smollm2_gives_the_logits_of_the_unpacked_model(smollm2):
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer.encode(PROMPT)[:200]])
    assert ids.shape[1] > 150
    with torch.inference_mode():
        want = unpacked_smollm2(model.config)(ids).logits
        got = model(ids).logits
        one = model(ids[:, :1]).logits
    assert (got - want).abs().max() < 1e-3
    assert (got.argmax(-1) == want.argmax(-1)).all()
    assert (one[:, 0] - want[:, 0]).abs().max() < 1e-3


def test_smollm2_answers_and_stops(smollm2):
    model, tokenizer = smollm2
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=60, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(out)
    assert tokenizer.convert_ids_to_tokens(out[-1].item()) == "<|im_end|>"


LOAD_PROBE = """
import sys
from tiny_gguf import memory, reset_peak_memory
from torch_qmm.models import load_model
reset_peak_memory()
before = memory("VmRSS")
model, tokenizer = load_model(sys.argv[1])
print(memory("VmHWM") - before, sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_smollm2_loads_in_little_memory():
    path = smollm2_path()
    used, parameters = map(float, run_python(LOAD_PROBE, path).split())
    assert used < 1.3 * path.stat().st_size
    assert parameters < path.stat().st_size


@pytest.mark.slow
def test_smollm2_has_the_tokenizer_and_configuration_of_transformers(smollm2):
    model, tokenizer = smollm2
    path = smollm2_path()
    assert_same_tokenizer(tokenizer, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
    theirs = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    assert_same_configuration(model.config.to_dict(), theirs.to_dict(), set())
