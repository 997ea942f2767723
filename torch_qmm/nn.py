"""Layers whose weights stay packed: drop-in replacements for ``nn.Linear`` and ``nn.Embedding``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_qmm.formats import Format
from torch_qmm.ops import check_compute_dtype, check_packed, refuse_forward_mode
from torch_qmm.tensor import QuantTensor

# Resolved once: a lookup through torch.ops takes as long as a small product.
_linear = torch.ops.qmm.linear.default
_embedding = torch.ops.qmm.embedding.default


class _PackedMixin:
    """What the packed layers share: the packed parameter, its format, and their way through a state dict.

    A state dict holds the packed bytes under ``weight`` and, under ``_extra_state``, an int64 tensor
    ``[format, N, K]``, so that bytes can never be read in another format than they were written in.
    """

    weight: nn.Parameter
    format: Format
    compute_dtype: torch.dtype | None

    def _set_packed(self, data: torch.Tensor, fmt: Format) -> None:
        self.format = fmt
        self.weight = nn.Parameter(data, requires_grad=False)

    @property
    def quant_tensor(self) -> QuantTensor:
        """The packed weight with its format; shares memory with ``weight``."""
        return QuantTensor(self.weight.detach(), self.format)

    def get_extra_state(self) -> torch.Tensor:
        # on the CPU whatever the default device, so that a state dict is the same everywhere
        return torch.tensor([int(self.format), *self.quant_tensor.shape], device="cpu")

    def set_extra_state(self, state: torch.Tensor) -> None:
        pass  # already held against this layer in _load_from_state_dict; there is nothing to set

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:
        weight, state = state_dict.get(prefix + "weight"), state_dict.get(prefix + "_extra_state")
        assign = local_metadata.get("assign_to_params_buffers", False)
        problem = self._weight_problem(weight, assign) or self._state_problem(weight, state)
        if problem is not None:
            errors.append(f"{prefix.removesuffix('.') or type(self).__name__}: {problem}")
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def _weight_problem(self, weight: Any, assign: bool) -> str | None:
        if weight is None:
            return None
        want = f"packed uint8 of {_describe(self.get_extra_state())}"
        if not isinstance(weight, torch.Tensor):
            return f"weight: got {type(weight).__name__}, want {want}"
        if weight.dtype != torch.uint8:
            return f"weight: got {weight.dtype} {list(weight.shape)}, want {want}"
        if assign and not weight.is_contiguous():
            return f"weight: got a non-contiguous tensor, want contiguous {want}"
        return None  # a wrong packed shape is reported by nn.Module itself

    def _state_problem(self, weight: torch.Tensor | None, state: Any) -> str | None:
        want = self.get_extra_state()
        if state is None:
            return None if weight is None else f"_extra_state: got nothing that says what the bytes mean, want {want}"
        if not isinstance(state, torch.Tensor) or state.is_meta or state.shape != want.shape:
            return f"_extra_state: got {state!r}, want {want}: format, N, K"
        if not torch.equal(state.to(want), want):
            return f"weight: got {_describe(state)}, want {_describe(want)}"
        return None

    def _apply(self, fn, recurse: bool = True):
        # nn.Module applies one function to all parameters for .to(), .half(), .type() and their kin. Packed bytes may
        # move to another device but never change dtype; compute_dtype follows as a float weight's dtype would.
        def keep_packed(t: torch.Tensor) -> torch.Tensor:
            applied = fn(t)
            return t.to(applied.device) if t.dtype == torch.uint8 and applied.dtype != t.dtype else applied

        super()._apply(keep_packed, recurse)
        if self.compute_dtype is not None:
            dtype = fn(torch.empty(0, dtype=self.compute_dtype, device="cpu")).dtype
            if dtype.is_floating_point:
                self.compute_dtype = dtype
        return self


def _describe(state: torch.Tensor) -> str:
    fmt, *shape = state.tolist()
    name = Format(fmt).name if fmt in Format._value2member_map_ else f"format {fmt}"
    return f"{name} {shape}"


class QuantLinear(_PackedMixin, nn.Linear):
    """``y = x W^T + b`` with ``W`` packed: ``[..., K] -> [..., N]`` in the dtype of ``x``.

    A subclass of ``nn.Linear``, so ``isinstance`` checks and adapters find it.  ``weight`` is the packed uint8
    parameter ``[N, bytes per row]``, which shows where other code reads it instead of calling the layer:

    - Code that casts activations to ``module.weight.dtype`` (T5's feed-forward in transformers does) must use
      ``module.compute_dtype or x.dtype`` instead, and gets a clear error if it does not.
    - ``nn.MultiheadAttention``, the fast path of ``nn.TransformerEncoderLayer``, fusion with batch norm and pruning
      compute with ``weight`` themselves: they can't work with a packed layer.
    - ``requires_grad_(True)`` on it is refused by torch, as on any integer tensor.

    Autocast does not cast ``x``; set ``compute_dtype``.

    Args:
        in_features: K, a whole number of the format's blocks.
        out_features: N.
        bias: whether there is a bias, a float parameter ``[N]``.
        format: weight format (member, id or name).
        compute_dtype: dtype that ``x`` is cast to for the product; None computes in the dtype of ``x``.
            The result has the dtype of ``x`` either way.
        device, dtype: of the parameters; ``dtype`` concerns the bias only.

    Raises:
        ValueError: unknown format or ``compute_dtype``, or ``in_features`` that its blocks do not divide.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        format: Format | int | str,
        compute_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # not nn.Linear's: it would allocate the unpacked weight
        fmt = Format.parse(format)
        check_compute_dtype(compute_dtype)
        self.in_features, self.out_features, self.compute_dtype = in_features, out_features, compute_dtype
        self._set_packed(torch.zeros(out_features, fmt.row_bytes(in_features), dtype=torch.uint8, device=device), fmt)
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_quant_tensor(
        cls,
        weight: QuantTensor,
        bias: torch.Tensor | None = None,
        *,
        compute_dtype: torch.dtype | None = None,
    ) -> QuantLinear:
        """A layer that shares the memory of ``weight`` ``[N, K]`` and ``bias`` ``[N]``.

        Raises:
            TypeError: ``weight`` is no QuantTensor or ``bias`` no float tensor.
            ValueError: ``weight`` is no matrix, or ``bias`` does not fit it.
        """
        N, K = _matrix_shape(weight)
        if bias is not None and not (isinstance(bias, torch.Tensor) and bias.is_floating_point()):
            raise TypeError(f"bias: got {getattr(bias, 'dtype', type(bias).__name__)}, want a float tensor [{N}]")
        if bias is not None and bias.shape != (N,):
            raise ValueError(f"bias: got shape {list(bias.shape)}, want [{N}]")
        layer = cls(K, N, bias=False, format=weight.format, compute_dtype=compute_dtype, device="meta")
        layer._set_packed(weight.data, weight.format)
        if bias is not None:
            layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias)
        return layer

    def reset_parameters(self) -> None:
        """Nothing: packed weights come from a file or a quantizer, never from an initialiser."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        if self.compute_dtype not in (None, dtype) and x.is_floating_point():  # else the operator refuses x
            x = x.to(self.compute_dtype)
        refuse_forward_mode(x)
        bias = self.bias
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        y = _linear(x, self.weight, int(self.format), None, None, bias)
        return y if y.dtype == dtype else y.to(dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format.name}"
        )


class QuantEmbedding(_PackedMixin, nn.Embedding):
    """Rows of a packed table: ids ``[...]`` of any integer dtype -> ``[..., K]`` of ``compute_dtype``.

    Args:
        num_embeddings: N, the rows of the table.
        embedding_dim: K, a whole number of the format's blocks.
        padding_idx: kept for its readers; a packed table has no gradient that it could mask.
        format: weight format (member, id or name).
        compute_dtype: dtype of the result; None takes torch's default dtype now. ``.half()`` and ``.to(dtype)``
            change it as they would a float table's.

    Raises:
        ValueError: unknown format, ``compute_dtype`` or ``padding_idx``, or ``embedding_dim`` that its blocks do not
            divide.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        format: Format | int | str,
        compute_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        nn.Module.__init__(self)  # not nn.Embedding's: it would allocate the unpacked table
        fmt = Format.parse(format)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx: got {padding_idx}, want None or a row of {num_embeddings}")
        padding_idx = padding_idx + num_embeddings if padding_idx is not None and padding_idx < 0 else padding_idx
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False
        check_compute_dtype(compute_dtype)
        self.compute_dtype = compute_dtype or torch.get_default_dtype()
        table = torch.zeros(num_embeddings, fmt.row_bytes(embedding_dim), dtype=torch.uint8, device=device)
        self._set_packed(table, fmt)

    @classmethod
    def from_quant_tensor(
        cls, weight: QuantTensor, *, padding_idx: int | None = None, compute_dtype: torch.dtype | None = None
    ) -> QuantEmbedding:
        """A layer that shares the memory of ``weight`` ``[N, K]``.

        Raises:
            ValueError: ``weight`` is no matrix.
        """
        N, K = _matrix_shape(weight)
        layer = cls(N, K, padding_idx, format=weight.format, compute_dtype=compute_dtype, device="meta")
        layer._set_packed(weight.data, weight.format)
        return layer

    def reset_parameters(self) -> None:
        """Nothing: packed weights come from a file or a quantizer, never from an initialiser."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return _embedding(ids, self.weight, int(self.format), dtype=self.compute_dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, format={self.format.name}, {self.compute_dtype}"


def _matrix_shape(weight: QuantTensor) -> tuple[Any, Any]:
    check_packed(weight)
    if weight.data.ndim != 2:
        raise ValueError(f"weight: got shape {list(weight.shape)}, want a matrix [N, K]")
    return tuple(weight.shape)
