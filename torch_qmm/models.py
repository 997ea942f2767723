"""Whole models from a GGUF file: an architecture of transformers with packed layers in it.

The architecture and the tokenizer's classes are transformers' own; the configuration, the weights and the
vocabulary come from the file, which is parsed once. Nothing is unpacked: every matrix stays in the format of
the file, norms and biases become float parameters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import gguf
import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.integrations.gguf import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from torch_qmm.gguf import GGUFFile, TensorInfo
from torch_qmm.nn import QuantEmbedding, QuantLinear
from torch_qmm.tensor import QuantTensor

__all__ = ["ModelLoadError", "load_model"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_T = TypeVar("_T", bool, int, float, str)


class ModelLoadError(ValueError):
    """A readable GGUF file that no model can be made of: the message says what came and what is wanted."""


@dataclass(frozen=True)
class _Architecture:
    """What sets one of llama.cpp's architectures apart.

    Attributes:
        model_type: the architecture's name in transformers.
        interleaved: the file holds the rows of q and k in the order of llama.cpp's rotary embedding.
        norm_offset: what the file adds to the weights of norms.
        window_period: of so many layers all but the last attend to a sliding window; 0 if none does.
        theta: base of the rotary frequencies where the file does not say.
        scale_layers: the number of layers of the one model that scales attention by hidden size per head.
        softcaps: the keys of logit caps that the model in transformers has.
    """

    model_type: str
    interleaved: bool = False
    norm_offset: int = 0
    window_period: int = 0
    theta: float = 10_000.0
    scale_layers: int = 0
    softcaps: tuple[str, ...] = ()


_ARCHITECTURES = {
    "llama": _Architecture("llama", interleaved=True),
    "qwen2": _Architecture("qwen2"),
    "qwen3": _Architecture("qwen3"),
    "gemma2": _Architecture(
        "gemma2",
        norm_offset=1,
        window_period=2,
        scale_layers=46,
        softcaps=("attn_logit_softcapping", "final_logit_softcapping"),
    ),
    "gemma3": _Architecture(
        "gemma3_text",
        norm_offset=1,
        window_period=6,
        theta=1_000_000.0,
        scale_layers=62,
        softcaps=("final_logit_softcapping",),
    ),
}

# Keys that change nothing of what is computed.
_INFORMATIVE_KEYS = ("rope.scaling.finetuned", "tensor_data_layout", "pooling_type")
# Keys whose one value here says that the model lacks what they are about.
_FIXED_KEYS = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True}
# Texts of tokens that end a turn or a text, whatever the file names as its end token: chat models are often
# converted with the end of text as their end token and stop with another.
_END_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>", "<|return|>"),
    *("<|call|>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
)
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens that are no ordinary text


def load_model(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    progress: bool | None = None,
) -> tuple[PreTrainedModel, TokenizersBackend | None]:
    """A model ready to generate, and its tokenizer, from a GGUF file alone.

    The model is transformers' own class with :class:`~torch_qmm.nn.QuantLinear` and
    :class:`~torch_qmm.nn.QuantEmbedding` for every matrix, F32, F16 and BF16 ones included. On the CPU their
    weights are views of the mapped file (all but llama's q and k, whose rows are put back in order), so the file
    must not be changed while the model is in use; it may be deleted. See :class:`~torch_qmm.gguf.GGUFFile`.

    Args:
        path: the file; any part of a split model loads all of it. Architectures: llama (and mistral), qwen2,
            qwen3, gemma2, gemma3.
        device: where the model goes, one tensor at a time; None is the CPU.
        dtype: float32, float16 or bfloat16: of activations, norms and biases.
        progress: whether to show a bar on stderr; None shows it on a terminal.

    Returns:
        The model in evaluation mode, and the tokenizer, which is None if the file has none.
        ``generation_config`` stops at every token that ends a turn or a text.

    Raises:
        ModelLoadError: an unknown architecture, or metadata or tensors that do not fit it.
        torch_qmm.gguf.GGUFError: the file is damaged.
        ValueError: another ``dtype``.
        OSError: the file cannot be opened.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype: got {dtype}, want float32, float16 or bfloat16")
    with GGUFFile(path) as file:
        name, arch = _architecture(file)
        meta = _Metadata(file, name)
        config = _read_config(meta, arch, file)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        weights = _Weights(file, name, arch, config, dtype, torch.device(device or "cpu"))
        weights.fill(model, progress)
        _set_generation(model, file)
        return model.eval(), _read_tokenizer(file, name)


def _architecture(file: GGUFFile) -> tuple[str, _Architecture]:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path}: metadata 'general.architecture': got {name!r}, want one of {', '.join(_ARCHITECTURES)}"
        )
    return name, _ARCHITECTURES[name]


class _Metadata:
    """The metadata of an architecture, read with types; knows which keys nobody has read."""

    def __init__(self, file: GGUFFile, architecture: str):
        self.path, self.values, self.prefix = file.path, file.metadata, architecture + "."
        self.unread = {key for key in file.metadata if key.startswith(self.prefix)}

    def error(self, key: str, want: str) -> ModelLoadError:
        got = repr(self.values[self.prefix + key]) if self.prefix + key in self.values else "nothing"
        return ModelLoadError(f"{self.path}: metadata {self.prefix + key!r}: got {got}, want {want}")

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T | None:
        """The value; a per-layer array whose entries are all the same counts as that entry."""
        full = self.prefix + key
        if full not in self.values:
            return default
        self.unread.discard(full)
        value = self.values[full]
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = value[0].item()
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(key, f"one {kind.__name__}")
        return value

    def need(self, key: str, kind: type[_T]) -> _T:
        value = self.get(key, kind)
        if value is None:
            raise self.error(key, f"one {kind.__name__}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.need(key, int) if default is None else self.get(key, int, default)
        if not 0 < value < 2**31:
            raise self.error(key, "a size from 1 to 2^31 - 1")
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.get(key, float, default)
        if not 0 < value < float("inf"):
            raise self.error(key, "a finite number above 0")
        return value

    def refuse_unread(self) -> None:
        """An unread key may change what the model computes: better no model than a wrong one."""
        for key in sorted(self.unread):
            short = key.removeprefix(self.prefix)
            if short not in _INFORMATIVE_KEYS:
                raise self.error(short, "no such key: this loader does not know what it changes")


def _read_config(meta: _Metadata, arch: _Architecture, file: GGUFFile) -> PretrainedConfig:
    for key, want in _FIXED_KEYS.items():
        if meta.get(key, type(want), want) != want:
            raise meta.error(key, repr(want))
    layers, heads, hidden = (meta.size(key) for key in ("block_count", "attention.head_count", "embedding_length"))
    if layers > len(file.tensors):
        raise meta.error("block_count", f"at most {len(file.tensors)}, the tensors in the file")
    head_dim = _head_dim(meta, hidden, heads)
    values: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": meta.size("feed_forward_length"),
        "max_position_embeddings": meta.size("context_length"),
        "rms_norm_eps": meta.need("attention.layer_norm_rms_epsilon", float),
        "name_or_path": str(file.path),
        "vocab_size": _vocab_size(meta, file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_token_ids(file),
        **_bias_switches(file),
        **_attention(meta, arch, layers, hidden // heads, head_dim),
        **_rope(meta, arch),
    }
    meta.refuse_unread()
    model_type = values.pop("model_type", arch.model_type)
    try:
        return AutoConfig.for_model(model_type, **values)
    except (ValueError, TypeError, StrictDataclassError) as e:
        raise ModelLoadError(f"{file.path}: transformers refuses the metadata: {e}") from e


def _head_dim(meta: _Metadata, hidden: int, heads: int) -> int:
    rotary = meta.get("rope.dimension_count", int)
    head_dim = meta.size("attention.key_length", rotary or hidden // heads or 1)
    if head_dim % 2:
        raise meta.error("attention.key_length" if rotary is None else "rope.dimension_count", "an even number")
    for key in ("rope.dimension_count", "attention.value_length"):
        if meta.get(key, int, head_dim) != head_dim:
            raise meta.error(key, f"{head_dim}, the size of a head of k")
    return head_dim


def _vocab_size(meta: _Metadata, file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    known = len(_tokens(file)) or (embedding.shape[0] if embedding else None)
    return meta.size("vocab_size", known)


def _tokens(file: GGUFFile) -> list[str]:
    """The vocabulary; empty if the file has none."""
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ModelLoadError(f"{file.path}: metadata 'tokenizer.ggml.tokens': got no texts, want an array of them")
    return tokens


def _token_ids(file: GGUFFile) -> dict[str, int | None]:
    """Special ids; one that the file lacks is None, never the default of a configuration class."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {f"{ours}_token_id": _token_id(file, theirs) for ours, theirs in names.items()}


def _token_id(file: GGUFFile, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.metadata.get(key)
    count = len(_tokens(file)) or 2**31
    if value is not None and (type(value) is not int or not 0 <= value < count):
        raise ModelLoadError(f"{file.path}: metadata {key!r}: got {value!r}, want one of {count} tokens")
    return value


def _bias_switches(file: GGUFFile) -> dict[str, bool]:
    """Biases show in nothing but the presence of their tensors."""
    switches = {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_down.bias"}
    return {switch: True for switch, name in switches.items() if name in file.tensors}


def _attention(
    meta: _Metadata, arch: _Architecture, layers: int, hidden_per_head: int, head_dim: int
) -> dict[str, Any]:
    """Sliding windows, logit caps and the scale of attention."""
    caps = {key: meta.get(key, float) for key in arch.softcaps}
    values: dict[str, Any] = {key: cap for key, cap in caps.items() if cap is not None}
    window = meta.get("attention.sliding_window", int, 0) or None
    if arch.window_period:
        # llama.cpp scales by the size of a head, and by hidden size per head in each family's 27B; no key says so.
        values["query_pre_attn_scalar"] = hidden_per_head if layers == arch.scale_layers else head_dim
        values["layer_types"] = _layer_types(meta, arch, layers)
        if window is None:
            raise meta.error("attention.sliding_window", "the tokens that sliding attention sees")
        values["sliding_window"] = window
    elif window is not None:
        if arch.model_type != "llama":
            raise meta.error("attention.sliding_window", f"none in a {arch.model_type} model")
        # Mistral is converted as llama; the two differ in the window alone.
        values |= {"model_type": "mistral", "sliding_window": window}
    return values


def _layer_types(meta: _Metadata, arch: _Architecture, layers: int) -> list[str]:
    key = "attention.sliding_window_pattern"
    pattern = meta.values.get(meta.prefix + key)
    if isinstance(pattern, np.ndarray) and pattern.dtype == bool:
        meta.unread.discard(meta.prefix + key)
        if len(pattern) != layers:
            raise meta.error(key, f"an entry for each of {layers} layers")
        sliding = pattern.tolist()
    else:
        period = meta.size(key, arch.window_period)
        sliding = [(i + 1) % period != 0 for i in range(layers)]
    return ["sliding_attention" if s else "full_attention" for s in sliding]


def _rope(meta: _Metadata, arch: _Architecture) -> dict[str, Any]:
    full = {"rope_theta": meta.positive("rope.freq_base", arch.theta), **_rope_scaling(meta)}
    if arch.model_type != "gemma3_text":
        return {"rope_parameters": full}
    # Scaling stretches full attention only; a sliding window never looks further than it did in training.
    sliding = {"rope_theta": meta.positive("rope.freq_base_swa", 10_000.0), "rope_type": "default"}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def _rope_scaling(meta: _Metadata) -> dict[str, Any]:
    """``rope.scaling.*`` in the words of transformers, by the defaults of llama.cpp."""
    kind = meta.get("rope.scaling.type", str, "linear")
    factor = meta.positive("rope.scaling.factor", meta.positive("rope.scale_linear", 1.0))
    original = meta.get("rope.scaling.original_context_length", int)
    if kind not in ("none", "linear", "yarn"):
        raise meta.error("rope.scaling.type", "'none', 'linear' or 'yarn'")
    if kind == "yarn" and factor != 1.0:
        attention = meta.get("rope.scaling.attn_factor", float, 1.0)
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original or meta.size("context_length"),
            "attention_factor": attention * (0.1 * float(np.log(factor)) + 1.0),
            "beta_fast": meta.get("rope.scaling.yarn_beta_fast", float, 32.0),
            "beta_slow": meta.get("rope.scaling.yarn_beta_slow", float, 1.0),
        }
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default"}
    return {"rope_type": "linear", "factor": factor}


class _ScaledQuantEmbedding(QuantEmbedding):
    """A packed embedding whose rows are scaled, as gemma's are; ``embed_scale`` is a buffer without dimensions."""

    embed_scale: torch.Tensor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = super().forward(ids)
        return rows * self.embed_scale.to(rows.dtype)


def _restore_rows(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows ``[N, ...]`` of a llama q or k, of ``heads`` heads, in the order of transformers; a copy.

    transformers' rotary embedding turns dimension i of a head with i + d/2, llama.cpp's turns 2i with 2i + 1.
    The converter reorders rows for that; whole rows, so packed ones move as they are.
    """
    half = rows.shape[0] // heads // 2
    return rows.view(heads, half, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class _Weights:
    """Fills a model on the meta device from the tensors of a file, and holds the two against each other."""

    def __init__(
        self,
        file: GGUFFile,
        name: str,
        arch: _Architecture,
        config: PretrainedConfig,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.file, self.arch, self.config, self.dtype, self.device = file, arch, config, dtype, device
        enum = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
        self.names = gguf.get_tensor_name_map(enum, config.num_hidden_layers)
        self.unused = set(file.tensors)

    def error(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"{self.file.path}: {reason}")

    def fill(self, model: PreTrainedModel, progress: bool | None) -> None:
        modules = [(name, module) for name, module in model.named_modules() if list(module.parameters(recurse=False))]
        tied = self.config.tie_word_embeddings
        show = sys.stderr.isatty() if progress is None else progress
        for name, module in tqdm(modules, desc="loading", unit="layer", disable=not show):
            if not (tied and module is model.get_output_embeddings()):
                self._fill_module(model, name, module)
        if tied:
            self._tie(model)
        self._rebuild_buffers(model)
        self._check(model)

    def _fill_module(self, model: PreTrainedModel, name: str, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else self._floats(f"{name}.bias", module.bias)
            model.set_submodule(
                name, QuantLinear.from_quant_tensor(self._packed(f"{name}.weight", module.weight), bias)
            )
        elif isinstance(module, nn.Embedding):
            model.set_submodule(name, self._embedding(self._packed(f"{name}.weight", module.weight), module))
        else:
            for key, parameter in module.named_parameters(recurse=False):
                setattr(module, key, self._floats(f"{name}.{key}", parameter))

    def _embedding(self, weight: QuantTensor, module: nn.Embedding) -> QuantEmbedding:
        scale = getattr(module, "scalar_embed_scale", None)
        if scale is None and type(module) is not nn.Embedding:
            raise self.error(f"an embedding of class {type(module).__name__} is not supported")
        kind = QuantEmbedding if scale is None else _ScaledQuantEmbedding
        layer = kind.from_quant_tensor(weight, padding_idx=module.padding_idx, compute_dtype=self.dtype)
        if scale is not None:
            layer.register_buffer("embed_scale", torch.tensor(scale, device=self.device), persistent=False)
        return layer

    def _tie(self, model: PreTrainedModel) -> None:
        embedding = model.get_input_embeddings()
        head = QuantLinear.from_quant_tensor(embedding.quant_tensor)
        head.weight = embedding.weight
        model.set_output_embeddings(head)

    def _take(self, name: str, parameter: torch.Tensor) -> TensorInfo:
        """The tensor for a parameter of the model, which has the parameter's shape."""
        stem, _, suffix = name.rpartition(".")
        theirs = self.names.get_name(stem)
        info = self.file.tensors.get(f"{theirs}.{suffix}")
        if info is None:
            raise self.error(f"no tensor {f'{theirs}.{suffix}' if theirs else ''!r} for the model's {name}")
        if info.shape != tuple(parameter.shape):
            raise self.error(
                f"tensor {info.name!r}: got shape {list(info.shape)}, want {list(parameter.shape)} by the metadata"
            )
        self.unused.discard(info.name)
        return info

    def _heads(self, info: TensorInfo) -> int | None:
        """The heads whose rows the file holds in another order, or None if it holds them in ours."""
        kind = info.name.rpartition(".")[0].rpartition(".")[2]
        if not self.arch.interleaved or kind not in ("attn_q", "attn_k"):
            return None
        return self.config.num_attention_heads if kind == "attn_q" else self.config.num_key_value_heads

    def _packed(self, name: str, parameter: torch.Tensor) -> QuantTensor:
        info = self._take(name, parameter)
        weight = self.file.load(info.name)
        heads = self._heads(info)
        if heads is not None:
            weight = QuantTensor(_restore_rows(weight.data, heads), weight.format)
        return weight.to(self.device)

    def _floats(self, name: str, parameter: torch.Tensor) -> nn.Parameter:
        info = self._take(name, parameter)
        values = self.file.load_float(info.name)
        heads = self._heads(info)
        if heads is not None:
            values = _restore_rows(values, heads)
        if self.arch.norm_offset and info.name.endswith("norm.weight"):
            values = values.float() - self.arch.norm_offset
        return nn.Parameter(values.to(self.device, self.dtype))

    def _rebuild_buffers(self, model: PreTrainedModel) -> None:
        """Rotary frequencies come from the configuration, not from the file: made anew off the meta device."""
        for name, module in list(model.named_modules()):
            if any(b.is_meta for b in module.buffers(recurse=False)) and hasattr(module, "config"):
                with torch.device("cpu"):  # whatever default device the caller has set
                    rotary = type(module)(module.config)
                if "rope_freqs.weight" in self.file.tensors:
                    self._apply_rope_factors(rotary)
                model.set_submodule(name, rotary.to(self.device))

    def _apply_rope_factors(self, rotary: nn.Module) -> None:
        """Llama 3's frequency factors, which the file holds ready-made: they divide the frequencies."""
        info = self.file.tensors["rope_freqs.weight"]
        frequencies = [b for key, b in rotary.named_buffers() if key in ("inv_freq", "original_inv_freq")]
        if not frequencies or info.shape != tuple(frequencies[0].shape):
            want = list(frequencies[0].shape) if frequencies else "none in this architecture"
            raise self.error(f"tensor {info.name!r}: got shape {list(info.shape)}, want {want}")
        factors = self.file.load_float(info.name).float()
        if not (factors > 0).all():
            raise self.error(f"tensor {info.name!r}: got factors down to {factors.min().item()}, want them above 0")
        for frequency in frequencies:
            frequency /= factors
        self.unused.discard(info.name)

    def _check(self, model: PreTrainedModel) -> None:
        if self.unused:
            raise self.error(f"tensors {_some(self.unused)} have no place in a {self.config.model_type} model")
        empty = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
        if empty:
            raise self.error(f"the model's {_some(empty)} got no values")


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _set_generation(model: PreTrainedModel, file: GGUFFile) -> None:
    """Makes ``generate()`` stop where the model means to, and pad with something."""
    ends = _end_ids(file)
    generation = model.generation_config
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    if generation.pad_token_id is None and ends:
        generation.pad_token_id = ends[0]


def _end_ids(file: GGUFFile) -> list[int]:
    """The ids that the file names as ends, then those that are spelled like one."""
    named = [_token_id(file, name) for name in ("eos", "eot", "eom")]
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    special = (_CONTROL, _USER_DEFINED)
    spelled = [i for i, t in enumerate(_tokens(file)) if t in _END_TOKENS and i < len(types) and types[i] in special]
    return list(dict.fromkeys(i for i in (*named, *spelled) if i is not None))


def _read_tokenizer(file: GGUFFile, architecture: str) -> TokenizersBackend | None:
    """The tokenizer that transformers makes of the same file, from metadata that is parsed already."""
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind is None or not _tokens(file):
        return None
    metadata = {k.removeprefix("tokenizer."): v for k, v in file.metadata.items() if k.startswith("tokenizer.")}
    vocabulary, settings = (
        {ours: _plain(metadata[theirs]) for theirs, ours in GGUF_TOKENIZER_MAPPING[part].items() if theirs in metadata}
        for part in ("tokenizer", "tokenizer_config")
    )
    if kind == "llama":
        settings.setdefault("add_bos_token", True)  # what llama.cpp does with files from before the flag
    for name, token_id in _token_ids(file).items():
        settings[name.removesuffix("_id")] = None if token_id is None else vocabulary["tokens"][token_id]
    try:
        backend, extra = convert_gguf_tokenizer(architecture, vocabulary)
        return TokenizersBackend(tokenizer_object=backend, name_or_path=str(file.path), **settings, **extra)
    except Exception as e:  # which the tokenizers library raises bare
        raise ModelLoadError(f"{file.path}: transformers can make no tokenizer of the metadata: {e}") from e


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
