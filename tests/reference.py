"""Independent references: gguf-py (or numpy) for what packed bytes mean, float64 for products."""

import gguf
import numpy as np
import torch

from torch_qmm import Format, QuantTensor
from torch_qmm.bench.weights import HALF_SCALES, random_weight

FORMATS = list(Format)
QUANTIZED = [f for f in Format if f.torch_dtype is None]


def dequantize_q1_0(packed: np.ndarray) -> np.ndarray:
    """Q1_0, which gguf-py can't unpack: a half d, then 128 bits, lowest first; a set bit is +d, a clear one -d."""
    blocks = packed.reshape(-1, 18)
    d = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(bool)
    return np.where(bits, d, -d).reshape(*packed.shape[:-1], -1)


def dequantize(weight: QuantTensor) -> np.ndarray:
    """float32 values of a packed weight by gguf-py."""
    packed = weight.data.numpy()
    if weight.format is Format.BF16:
        return (packed.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if weight.format is Format.Q1_0:
        return dequantize_q1_0(packed)
    kind = gguf.GGMLQuantizationType(weight.format)
    if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        return packed.view(np.float32 if kind == 0 else np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(packed, kind)


def wild_weight(fmt: Format, N: int, K: int, *, seed: int) -> QuantTensor:
    """Wholly random bytes, in which scales of every other row are NaN, +-inf, +-0, subnormal or the largest."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (N, fmt.row_bytes(K)), dtype=np.uint8)
    special = np.array([0x7E01, 0x7C00, 0xFC00, 0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF], dtype=np.uint16)
    blocks = packed.reshape(N, -1, fmt.block_bytes)
    for offset in HALF_SCALES.get(fmt, ()):
        halves = rng.choice(special, blocks[::2].shape[:2]).view(np.uint8).reshape(*blocks[::2].shape[:2], 2)
        blocks[::2, :, offset : offset + 2] = halves
    return QuantTensor(torch.from_numpy(packed), fmt)


def product64(x: torch.Tensor, weight: QuantTensor) -> torch.Tensor:
    """x W^T in float64."""
    return x.double() @ torch.from_numpy(dequantize(weight)).double().T


def relative_l2(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm())


def assert_close(got: torch.Tensor, want: torch.Tensor, magnitude: torch.Tensor, rtol: float) -> None:
    """Per element and in norm. `magnitude` is |x| |W|^T: cancellation can't be asked to keep relative accuracy."""
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    if want.numel() >= 16:  # the norm of a few results may cancel away, and rounding with it does not
        assert relative_l2(got, want) < rtol
    worst = ((got.double() - want).abs() / magnitude.clamp_min(1e-30)).max()
    assert worst < rtol, f"an element is off by {worst:.1e} of its terms' magnitude"


def magnitude64(x: torch.Tensor, weight: QuantTensor) -> torch.Tensor:
    return x.double().abs() @ torch.from_numpy(dequantize(weight)).double().abs().T


__all__ = ["FORMATS", "HALF_SCALES", "QUANTIZED", "random_weight"]
