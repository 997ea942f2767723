"""Small GGUF files for the tests: byte by byte where a fault is wanted, else through gguf-py."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import torch_qmm

REPO = Path(__file__).resolve().parent.parent


def smollm2_path() -> Path:
    """The real test model: ``$QMM_TEST_MODEL``, or the file ``make`` puts under ``.cache``."""
    path = Path(os.environ.get("QMM_TEST_MODEL") or REPO / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not path.is_file():
        reason = f"the test model is not at {path}; set QMM_TEST_MODEL"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def run_python(code: str, *args: str | Path) -> str:
    """The standard output of ``code`` in a fresh interpreter that finds this package and these helpers."""
    places = [Path(torch_qmm.__file__).parents[1], Path(__file__).parent]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def memory(key: str) -> int:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (at most so far) of this process, on Linux."""
    return int(re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def reset_peak_memory() -> None:
    """Forgets what this process's ``VmHWM`` has been, on Linux."""
    Path("/proc/self/clear_refs").write_text("5")


def string(text: str | bytes) -> bytes:
    """A GGUF string: 64-bit length, then the bytes."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A metadata pair of value type ``kind``."""
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes) -> bytes:
    """The value of a metadata pair of type 9."""
    return struct.pack("<IQ", kind, count) + items


def entry(name: str, dims: Sequence[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    """A line of the tensor table, ``dims`` in the file's order (K first)."""
    n = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", n, *dims, kind, offset)


@dataclass
class RawFile:
    """The parts of a file, none of them checked."""

    pairs: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_pairs: int | None = None
    n_entries: int | None = None
    alignment: int = 32

    def to_bytes(self) -> bytes:
        n_entries = len(self.entries) if self.n_entries is None else self.n_entries
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        head = self.magic + struct.pack("<IQQ", self.version, n_entries, n_pairs)
        head += b"".join(self.pairs) + b"".join(self.entries)
        return head + bytes(-len(head) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


def write_sample(path: Path, *, seed: int = 0) -> dict[str, np.ndarray]:
    """A file with a value of every metadata type and tensors of several formats.

    Returns the tensors' bytes by name, as uint8 arrays.  The last tensor ends with the file.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"number.{kind}", 7)
    writer.add_float32("number.float32", 0.5)
    writer.add_float64("number.float64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "grüße")
    writer.add_array("strings", ["a", "", "βγ"])
    writer.add_array("integers", [1, 2, -3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("flags", [True, False])
    quant = gguf.GGMLQuantizationType
    tensors: dict[str, np.ndarray] = {}
    for name, shape, kind in (
        ("norm.weight", (8,), quant.F32),
        ("plain.weight", (2, 8), quant.F16),
        ("brain.weight", (2, 8), quant.BF16),
        ("a.weight", (4, 64), quant.Q4_0),
        ("experts.weight", (2, 2, 32), quant.Q8_0),
        ("b.weight", (8, 32), quant.Q5_1),
    ):
        values = rng.standard_normal(shape).astype(np.float32)
        packed = gguf.quants.quantize(values, kind)
        raw_dtype = None if packed.dtype in (np.float32, np.float16) else kind
        writer.add_tensor(name, packed, raw_dtype=raw_dtype)
        tensors[name] = np.ascontiguousarray(packed).view(np.uint8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


# --- whole models: llama.cpp's conversion, written down a second time ---

_TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, architecture: str) -> str:
    """llama.cpp's name of a parameter of transformers."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    theirs = _LAYER_NAMES[rest]
    if architecture.startswith("gemma") and rest == "post_attention_layernorm":
        theirs = "post_attention_norm"
    return f"blk.{layer}.{theirs}.{suffix}"


def interleave_heads(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order of llama.cpp's rotary embedding."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights large enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        center = 0.0 if parameter.ndim == 2 or name.endswith("bias") else parameter.data.mean()
        scale = 2 * parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 0.3
        parameter.data = center + scale * noise


SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def build(model_type: str, **config) -> torch.nn.Module:
    """A small float model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM  # takes seconds, and the reader's tests do without

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(SIZES | config))).eval()
    randomize(model)
    return model


_KINDS = ("Q8_0", "Q4_0", "Q5_1", "Q4_1", "Q5_0", "F16", "BF16", "F32")


def write_model(
    path: Path,
    model: torch.nn.Module,
    architecture: str,
    *,
    metadata: dict[str, object] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    skip: Sequence[str] = (),
    kinds: Sequence[str] = _KINDS,
) -> None:
    """Writes ``model`` as llama.cpp would, matrices in ``kinds`` by turns, and gives it the values written.

    Args:
        metadata: more pairs, or others than the model's configuration gives; None leaves one out.
        tensors: more F32 tensors, by their names in the file.
        skip: names in the file of tensors to leave out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    pairs = model_metadata(model.config, architecture) | (metadata or {})
    for key, value in pairs.items():
        if value is not None:
            add_value(writer, key, value)
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            written = gguf_name(name, architecture)
            if written not in skip:
                kind = gguf.GGMLQuantizationType[kinds[i % len(kinds)] if parameter.ndim == 2 else "F32"]
                _add_parameter(writer, written, parameter, kind, model.config, architecture)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_parameter(writer, name: str, parameter: torch.Tensor, kind, config, architecture: str) -> None:
    packed = gguf.quants.quantize(parameter.numpy(), kind)
    parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind).copy()))
    if architecture == "llama" and ".attn_q." in name:
        packed = interleave_heads(packed, config.num_attention_heads)
    if architecture == "llama" and ".attn_k." in name:
        packed = interleave_heads(packed, config.num_key_value_heads)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        packed = packed + np.float32(1)
        parameter.copy_(torch.from_numpy(packed - np.float32(1)))
    raw_dtype = None if packed.dtype in (np.float32, np.float16) else kind
    writer.add_tensor(name, np.ascontiguousarray(packed), raw_dtype=raw_dtype)


def add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """One metadata pair of the type that llama.cpp gives such a value."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def model_metadata(config, architecture: str) -> dict[str, object]:
    """What llama.cpp's converter writes for a configuration of transformers."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    pairs: dict[str, object] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    if architecture == "llama":
        pairs |= {"vocab_size": config.vocab_size, "rope.dimension_count": head_dim}
    if architecture in ("qwen3", "gemma2", "gemma3"):
        pairs |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if architecture.startswith("gemma"):
        pairs["attention.sliding_window"] = config.sliding_window
    if architecture == "gemma2":
        pairs["attn_logit_softcapping"] = float(config.attn_logit_softcapping)
        pairs["final_logit_softcapping"] = float(config.final_logit_softcapping)
    return {f"{architecture}.{key}": value for key, value in pairs.items()}


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_vocabulary() -> dict[str, object]:
    """Metadata of a small byte-level BPE vocabulary with three special tokens."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    merges = ["h e", "he l", "hel l", "hell o", "Ġ w", "Ġw o", "r l", "rl d", "2 0", "Ġ a", "a n", "Ġ Ġ"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + letters + [merge.replace(" ", "") for merge in merges]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
