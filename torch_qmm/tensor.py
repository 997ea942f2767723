"""QuantTensor: packed bytes together with the format and shape that give them a meaning."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_qmm import ops
from torch_qmm.formats import Format


@dataclass(frozen=True, eq=False, repr=False)
class QuantTensor:
    """A matrix of quantized weights, kept packed.

    Args:
        data: uint8 ``[..., N, bytes per row]``, contiguous: each row a whole number of the format's blocks.
        format: what the bytes mean; an id or a name is accepted too.

    Raises:
        TypeError: ``data`` is not a uint8 tensor.
        ValueError: unknown format, fewer than one dimension, or rows that are no whole number of blocks.
    """

    data: torch.Tensor
    format: Format

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", Format.parse(self.format))
        if not isinstance(self.data, torch.Tensor) or self.data.dtype != torch.uint8:
            got = self.data.dtype if isinstance(self.data, torch.Tensor) else type(self.data).__name__
            raise TypeError(f"data: got {got}, want a torch.uint8 tensor of packed bytes")
        if self.data.ndim == 0:
            raise ValueError("data: got a 0-d tensor, want [..., N, bytes per row]")
        self.format.row_weights(self.data.shape[-1])

    @property
    def shape(self) -> torch.Size:
        """Logical shape ``[..., N, K]``."""
        return torch.Size((*self.data.shape[:-1], self.format.row_weights(self.data.shape[-1])))

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self.data.nbytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights as plain values ``[..., N, K]`` of float32, float16 or bfloat16.

        float32 is bit-exact with ``gguf.quants.dequantize``; the others round it to nearest even.
        """
        return ops.dequantize(self, dtype)

    def to(self, device: torch.device | str) -> QuantTensor:
        """The same packed bytes on another device."""
        if isinstance(device, torch.dtype):
            raise TypeError(f"device: got {device}, want a device: packed bytes have no dtype; see dequantize()")
        return QuantTensor(self.data.to(device), self.format)

    def __len__(self) -> int:
        return self.data.shape[0]

    def __getitem__(self, index: int | slice | torch.Tensor) -> QuantTensor:
        """Rows (or matrices of a stack) by number, slice or 1-d tensor of numbers; a slice shares memory."""
        if not isinstance(index, int | slice | torch.Tensor) or isinstance(index, bool):
            raise TypeError(
                f"index: got {type(index).__name__}, want an int, a slice or a tensor: "
                "only whole rows can be taken out of a packed matrix"
            )
        if isinstance(index, torch.Tensor) and (index.ndim > 1 or index.is_floating_point()):
            raise TypeError(
                f"index: got {index.dtype} {list(index.shape)}, want row numbers or a mask of one dimension"
            )
        if self.data.ndim == 1:
            raise TypeError("index: a single packed row cannot be taken apart; see dequantize()")
        return QuantTensor(self.data[index], self.format)

    def __repr__(self) -> str:
        return (
            f"QuantTensor({self.format.name}, shape={list(self.shape)}, {self.nbytes} bytes, "
            f"{self.format.bits_per_weight:g} bits per weight, device={str(self.device)!r})"
        )
