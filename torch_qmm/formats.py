"""The one table of weight formats.

A format says how many weights a block holds and how many bytes it takes; a packed row is
``K / block_weights`` blocks one after the other.  ``csrc/formats.h`` is the C++ view of this table and
``tests/test_formats.py`` holds the two, and the ``gguf`` package, against each other.
"""

from __future__ import annotations

from enum import IntEnum

import torch


class Format(IntEnum):
    """A weight format.  GGUF formats carry their ggml type id, so ``Format.Q4_K == 12``."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41

    @classmethod
    def parse(cls, value: Format | int | str) -> Format:
        """The format named by an id (``12``) or a name in any case (``"q4_k"``).

        Raises:
            ValueError: no such format; the message lists those there are.
        """
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            known = ", ".join(f"{f.name} ({f.value})" for f in cls)
            raise ValueError(f"format: got {value!r}, want one of {known}") from None

    @property
    def block_weights(self) -> int:
        """Weights in one block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _BLOCKS[self][1]

    @property
    def bits_per_weight(self) -> float:
        """Average bits a weight takes, scales included."""
        return 8 * self.block_bytes / self.block_weights

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The dtype whose plain values this format stores, or None for a quantized format."""
        return _PLAIN.get(self)

    def row_bytes(self, K: int) -> int:
        """Bytes of a packed row of ``K`` weights.

        Raises:
            ValueError: ``K`` is negative or not a whole number of blocks.
        """
        if K < 0 or K % self.block_weights:
            raise ValueError(f"K: got {K}, want a multiple of {self.block_weights}, the block of format {self.name}")
        return K // self.block_weights * self.block_bytes

    def row_weights(self, row_bytes: int) -> int:
        """Weights in a packed row of ``row_bytes`` bytes: the inverse of :meth:`row_bytes`.

        Raises:
            ValueError: ``row_bytes`` is not a whole number of blocks.
        """
        if row_bytes < 0 or row_bytes % self.block_bytes:
            raise ValueError(
                f"row bytes: got {row_bytes}, want a multiple of {self.block_bytes}, the block of format {self.name}"
            )
        return row_bytes // self.block_bytes * self.block_weights


# weights and bytes of one block
_BLOCKS: dict[Format, tuple[int, int]] = {
    Format.F32: (1, 4),
    Format.F16: (1, 2),
    Format.Q4_0: (32, 18),
    Format.Q4_1: (32, 20),
    Format.Q5_0: (32, 22),
    Format.Q5_1: (32, 24),
    Format.Q8_0: (32, 34),
    Format.Q2_K: (256, 84),
    Format.Q3_K: (256, 110),
    Format.Q4_K: (256, 144),
    Format.Q5_K: (256, 176),
    Format.Q6_K: (256, 210),
    Format.IQ2_XXS: (256, 66),
    Format.IQ2_XS: (256, 74),
    Format.IQ3_XXS: (256, 98),
    Format.IQ1_S: (256, 50),
    Format.IQ4_NL: (32, 18),
    Format.IQ3_S: (256, 110),
    Format.IQ2_S: (256, 82),
    Format.IQ4_XS: (256, 136),
    Format.IQ1_M: (256, 56),
    Format.BF16: (1, 2),
    Format.TQ1_0: (256, 54),
    Format.TQ2_0: (256, 66),
    Format.MXFP4: (32, 17),
    Format.NVFP4: (64, 36),
    Format.Q1_0: (128, 18),
}

_PLAIN = {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}
