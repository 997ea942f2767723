"""Random packed weights of any format: every bit pattern of the quants, scales of ordinary size."""

from __future__ import annotations

import numpy as np
import torch

from torch_qmm.formats import Format
from torch_qmm.tensor import QuantTensor

# Byte offsets of the half-precision scales in a block. The formats that are missing here hold no halves.
HALF_SCALES: dict[Format, tuple[int, ...]] = {
    Format.Q4_0: (0,),
    Format.Q4_1: (0, 2),
    Format.Q5_0: (0,),
    Format.Q5_1: (0, 2),
    Format.Q8_0: (0,),
    Format.Q2_K: (80, 82),
    Format.Q3_K: (108,),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
    Format.IQ2_XXS: (0,),
    Format.IQ2_XS: (0,),
    Format.IQ3_XXS: (0,),
    Format.IQ1_S: (0,),
    Format.IQ4_NL: (0,),
    Format.IQ3_S: (0,),
    Format.IQ2_S: (0,),
    Format.IQ4_XS: (0,),
    Format.TQ1_0: (52,),
    Format.TQ2_0: (64,),
    Format.Q1_0: (0,),
}


def random_weight(fmt: Format, N: int, K: int, *, seed: int = 0) -> QuantTensor:
    """A packed ``[N, K]`` weight of finite values: random bits, scales uniform in +-[0.002, 0.02].

    Random bits stand in for real weights here because a kernel's time doesn't depend on them, and because no
    quantizer is needed for formats that have none in Python.
    """
    rng = np.random.default_rng(seed)
    if fmt.torch_dtype is not None:
        values = torch.from_numpy(rng.standard_normal((N, K), dtype=np.float32)).to(fmt.torch_dtype)
        return QuantTensor(values.view(torch.uint8).reshape(N, fmt.row_bytes(K)), fmt)
    blocks = rng.integers(0, 256, (N * (K // fmt.block_weights), fmt.block_bytes), dtype=np.uint8)
    for offset in HALF_SCALES.get(fmt, ()):
        scale = rng.uniform(0.002, 0.02, len(blocks)) * rng.choice([-1.0, 1.0], len(blocks))
        blocks[:, offset : offset + 2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if fmt is Format.IQ1_M:  # its half is spread over the high nibbles of four 16-bit scale words
        bits = rng.uniform(0.002, 0.02, len(blocks)).astype(np.float16).view(np.uint16)
        for word in range(4):
            high = blocks[:, 48 + 2 * word + 1]
            high[:] = (high & 0x0F) | (((bits >> (4 * word)) & 0xF) << 4)
    elif fmt is Format.MXFP4:  # e8m0: 2^(e - 127)
        blocks[:, 0] = rng.integers(118, 128, len(blocks))
    elif fmt is Format.NVFP4:  # unsigned e4m3, one for 16 weights; 0x7F and above would be NaN
        blocks[:, 0:4] = rng.integers(0x18, 0x48, (len(blocks), 4))
    return QuantTensor(torch.from_numpy(blocks.reshape(N, fmt.row_bytes(K))), fmt)
