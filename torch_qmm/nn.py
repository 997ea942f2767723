"""Layers whose weights stay packed: drop-in replacements for ``nn.Linear`` and ``nn.Embedding``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_qmm.formats import Format
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
        return torch.tensor([int(self.format), *self.quant_tensor.shape])

    def set_extra_state(self, state: torch.Tensor) -> None:
        pass  # already held against this layer in _load_from_state_dict; there is nothing to set

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:
        problem = self._state_problem(state_dict.get(prefix + "weight"), state_dict.get(prefix + "_extra_state"))
        if problem is not None:
            errors.append(f"{prefix.removesuffix('.') or type(self).__name__}: {problem}")
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def _state_problem(self, weight: torch.Tensor | None, state: torch.Tensor | None) -> str | None:
        want = self.get_extra_state()
        if state is not None and not torch.equal(state.cpu(), want):
            return f"weight: got {_describe(state)}, want {_describe(want)}"
        if weight is not None and weight.dtype != torch.uint8:
            return f"weight: got {weight.dtype} {list(weight.shape)}, want packed uint8 of {_describe(want)}"
        return None  # a wrong packed shape is reported by nn.Module itself

    def _apply(self, fn, recurse: bool = True):
        # nn.Module applies one function to all parameters for .to(), .half(), .type() and their kin. Packed bytes may
        # move to another device but never change dtype; compute_dtype follows as a float weight's dtype would.
        def keep_packed(t: torch.Tensor) -> torch.Tensor:
            applied = fn(t)
            return t.to(applied.device) if t.dtype == torch.uint8 and applied.dtype != t.dtype else applied

        super()._apply(keep_packed, recurse)
        if self.compute_dtype is not None:
            dtype = fn(torch.empty(0, dtype=self.compute_dtype)).dtype
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
    parameter ``[N, bytes per row]``: code that casts activations to ``module.weight.dtype`` (T5's feed-forward
    in transformers does) must use ``module.compute_dtype or x.dtype`` instead, and gets a clear error if it
    does not.  ``requires_grad_(True)`` on it is refused by torch, as on any integer tensor.

    Args:
        in_features: K, a whole number of the format's blocks.
        out_features: N.
        bias: whether there is a bias, a float parameter ``[N]``.
        format: weight format (member, id or name).
        compute_dtype: dtype that ``x`` is cast to for the product; None computes in the dtype of ``x``.
            The result has the dtype of ``x`` either way.
        device, dtype: of the parameters; ``dtype`` concerns the bias only.

    Raises:
        ValueError: unknown format, or ``in_features`` that its blocks do not divide.
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
            ValueError: ``weight`` is no matrix, or ``bias`` does not fit it.
        """
        N, K = _matrix_shape(weight)
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
        if self.compute_dtype is not None and self.compute_dtype != dtype:
            x = x.to(self.compute_dtype)
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
        ValueError: unknown format, or ``embedding_dim`` that its blocks do not divide.
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
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False
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
    if weight.data.ndim != 2:
        raise ValueError(f"weight: got shape {list(weight.shape)}, want a matrix [N, K]")
    return tuple(weight.shape)
