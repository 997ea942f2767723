"""The operators: typed wrappers over ``torch.ops.qmm``, their fake kernels and their derivatives.

Schemas are in ``csrc/library.cpp``, the CPU kernels in ``csrc/cpu``.  In all of them ``x`` is ``[..., K]`` in
float32, float16 or bfloat16 with any strides, the weight is a :class:`QuantTensor` of logical shape ``[N, K]``,
the result is ``[..., N]`` in the dtype of ``x``, and sums are accumulated in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

from torch_qmm.formats import Format

try:
    from torch_qmm import _C  # noqa: F401  loading the extension registers the operators
except ImportError as error:
    raise ImportError(
        f"torch_qmm._C, the compiled part of torch_qmm, can't be loaded ({error}); build it with "
        "`pip install --no-build-isolation -e .` in the folder of torch_qmm (after an install without -e, run "
        "Python in another folder: the one here has no compiled part)"
    ) from error

if TYPE_CHECKING:
    from torch_qmm.tensor import QuantTensor

_ACTIVATION_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_packed(weight: object) -> None:
    """Refuses what is not a :class:`QuantTensor`, which alone says what its bytes mean."""
    if not isinstance(getattr(weight, "format", None), Format):
        raise TypeError(f"weight: got {type(weight).__name__}, want a QuantTensor")


def check_compute_dtype(dtype: torch.dtype | None) -> None:
    """Refuses a dtype that no kernel computes in."""
    if dtype is not None and dtype not in _ACTIVATION_DTYPES:
        raise ValueError(f"compute_dtype: got {dtype!r}, want None, torch.float32, torch.float16 or torch.bfloat16")


def refuse_forward_mode(x: torch.Tensor) -> None:
    """Refuses an ``x`` with a tangent: custom operators would drop it and give a derivative of zero."""
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise NotImplementedError("x: got a dual tensor, want a plain one: forward-mode derivatives are not supported")


def mul_mv(x: torch.Tensor, weight: QuantTensor) -> torch.Tensor:
    """``x W^T`` by the vector kernel: every packed block is unpacked in registers, once for up to 8 tokens.

    The arithmetic is float32 throughout (relative L2 error under 1e-6 for float32 ``x``), and a token's result
    has the same bits whatever the number of tokens beside it.

    Raises:
        RuntimeError: an argument's dtype, device or shape does not fit; the message names it.
    """
    check_packed(weight)
    refuse_forward_mode(x)
    return torch.ops.qmm.mul_mv(x, weight.data, int(weight.format))


def mul_mm(x: torch.Tensor, weight: QuantTensor, *, tile: int | None = None) -> torch.Tensor:
    """``x W^T`` by the matrix kernel, which unpacks weights once for many tokens.

    On the CPU a panel of rows is unpacked at a time for torch's own GEMM: to bfloat16 if ``x`` is bfloat16 (so
    weights are rounded to 8 significant bits), else to float32.

    Args:
        tile: tokens per GPU tile, 32 or 64; None takes the rule. The CPU has no tiles: it checks the value only.

    Raises:
        RuntimeError: an argument's dtype, device or shape does not fit; the message names it.
    """
    check_packed(weight)
    refuse_forward_mode(x)
    return torch.ops.qmm.mul_mm(x, weight.data, int(weight.format), tile=tile)


def linear(x: torch.Tensor, weight: QuantTensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x W^T + bias`` by the vector or the matrix kernel, whichever suits the number of tokens.

    Differentiable in ``x`` and ``bias`` (``[N]``, dtype of ``x``), any number of times, in reverse mode (``backward``,
    ``autograd.grad``; not ``torch.func.grad`` or ``jvp``, which torch does not offer for custom operators); the packed
    weight is a constant.

    Raises:
        RuntimeError: an argument's dtype, device or shape does not fit; the message names it.
    """
    check_packed(weight)
    refuse_forward_mode(x)
    return torch.ops.qmm.linear(x, weight.data, int(weight.format), None, None, bias)


def embedding(ids: torch.Tensor, weight: QuantTensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of the weight, unpacked: ids of any integer dtype and shape ``[...]`` -> ``[..., K]`` of ``dtype``.

    Raises:
        RuntimeError: an id outside ``[0, N)``, or an argument that does not fit; the message names it.
    """
    check_packed(weight)
    return torch.ops.qmm.embedding(ids, weight.data, int(weight.format), dtype=dtype)


def dequantize(weight: QuantTensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """All weights unpacked: ``[..., N, K]`` of ``dtype`` (float32 is bit-exact with gguf-py).

    Raises:
        RuntimeError: ``dtype`` is not float32, float16 or bfloat16.
    """
    check_packed(weight)
    return torch.ops.qmm.dequantize(weight.data, int(weight.format), dtype=dtype)


# Fake kernels: the shape and dtype of a result, and the checks that need no data, in the words of csrc/checks.h.


def _check(op: str, condition: bool, message: str) -> None:
    torch._check(condition, lambda: f"qmm::{op}: {message}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_no_scales(op: str, fmt: Format, scales: torch.Tensor | None, biases: torch.Tensor | None) -> None:
    for name, value, what in (("scales", scales, "scales"), ("biases", biases, "offsets")):
        message = f"{name}: got a tensor, want None: format {fmt.name} holds its {what} in the packed blocks"
        _check(op, value is None, message)


def _check_output_dtype(op: str, dtype: torch.dtype) -> None:
    _check(op, dtype in _ACTIVATION_DTYPES, f"dtype: got {_name(dtype)}, want float32, float16 or bfloat16")


def _fake_weight(op: str, weight: torch.Tensor, format_id: int, min_dim: int) -> Format:
    _check(
        op,
        format_id in Format._value2member_map_,
        f"format: got id {format_id}, want one of torch_qmm.Format",
    )
    fmt = Format(format_id)
    _check(op, weight.dtype == torch.uint8, f"weight: got dtype {_name(weight.dtype)}, want packed uint8 bytes")
    _check(
        op,
        weight.ndim >= min_dim and (weight.ndim == 2 or min_dim == 1),
        f"weight: got shape {list(weight.shape)}, want [{'..., ' if min_dim == 1 else ''}N, bytes per row]",
    )
    _check(
        op,
        weight.shape[-1] % fmt.block_bytes == 0,
        f"weight: got rows of {weight.shape[-1]} bytes, want a multiple of {fmt.block_bytes}, "
        f"the block of format {fmt.name}",
    )
    return fmt


def _check_device(op: str, name: str, t: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    _check(op, t.device == other.device, f"{name}: got device {t.device}, want that of {other_name}, {other.device}")


def _fake_product(op: str, x, weight, format_id, scales, biases, *, transposed: bool = False) -> torch.Tensor:
    fmt = _fake_weight(op, weight, format_id, 2)
    _check_no_scales(op, fmt, scales, biases)
    N, K = weight.shape[0], weight.shape[1] // fmt.block_bytes * fmt.block_weights
    name, axis, width, out = ("grad", "N", N, K) if transposed else ("x", "K", K, N)
    _check(
        op,
        x.dtype in _ACTIVATION_DTYPES,
        f"{name}: got dtype {_name(x.dtype)}, want float32, float16 or bfloat16",
    )
    _check(op, x.ndim >= 1, f"{name}: got a 0-d tensor, want [..., {axis}] with {axis} = {width}")
    _check(
        op,
        x.shape[-1] == width,
        f"{name}: got shape {list(x.shape)}, want [..., {axis}] with {axis} = {width}, "
        f"from the weight's rows of format {fmt.name}",
    )
    _check_device(op, "weight", weight, name, x)
    return x.new_empty((*x.shape[:-1], out))


@torch.library.register_fake("qmm::mul_mv")
def _(x, weight, format, scales=None, biases=None):
    return _fake_product("mul_mv", x, weight, format, scales, biases)


@torch.library.register_fake("qmm::mul_mm")
def _(x, weight, format, scales=None, biases=None, *, tile=None):
    _check("mul_mm", tile in (None, 32, 64), f"tile: got {tile}, want 32, 64 or None")
    return _fake_product("mul_mm", x, weight, format, scales, biases)


@torch.library.register_fake("qmm::linear")
def _(x, weight, format, scales=None, biases=None, bias=None):
    out = _fake_product("linear", x, weight, format, scales, biases)
    if bias is not None:
        N = weight.shape[0]
        _check("linear", bias.shape == (N,), f"bias: got shape {list(bias.shape)}, want [{N}]")
        _check(
            "linear", bias.dtype == x.dtype, f"bias: got dtype {_name(bias.dtype)}, want that of x, {_name(x.dtype)}"
        )
        _check_device("linear", "bias", bias, "x", x)
    return out


@torch.library.register_fake("qmm::mul_mm_t")
def _(grad, weight, format, scales=None, biases=None):
    return _fake_product("mul_mm_t", grad, weight, format, scales, biases, transposed=True)


@torch.library.register_fake("qmm::embedding")
def _(ids, weight, format, scales=None, biases=None, *, dtype):
    fmt = _fake_weight("embedding", weight, format, 2)
    _check_no_scales("embedding", fmt, scales, biases)
    _check_output_dtype("embedding", dtype)
    integer = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    _check("embedding", integer, f"ids: got dtype {_name(ids.dtype)}, want an integer dtype")
    _check_device("embedding", "weight", weight, "ids", ids)
    K = weight.shape[1] // fmt.block_bytes * fmt.block_weights
    return weight.new_empty((*ids.shape, K), dtype=dtype)


@torch.library.register_fake("qmm::dequantize")
def _(weight, format, scales=None, biases=None, *, dtype):
    fmt = _fake_weight("dequantize", weight, format, 1)
    _check_no_scales("dequantize", fmt, scales, biases)
    _check_output_dtype("dequantize", dtype)
    K = weight.shape[-1] // fmt.block_bytes * fmt.block_weights
    return weight.new_empty((*weight.shape[:-1], K), dtype=dtype)


# Derivatives: y = x W^T + b, so dx = dy W and db = the sum of dy over tokens. The weight is a constant.


def _save_weight(ctx, inputs, output):
    _, weight, ctx.format, *_ = inputs
    ctx.save_for_backward(weight)
    ctx.bias_needs_grad = len(inputs) > 5 and inputs[5] is not None


def _product_backward(ctx, grad):
    (weight,) = ctx.saved_tensors
    dx = torch.ops.qmm.mul_mm_t(grad, weight, ctx.format) if ctx.needs_input_grad[0] else None
    return dx, None, None, None, None


def _linear_backward(ctx, grad):
    wanted = ctx.bias_needs_grad and ctx.needs_input_grad[5]
    dbias = grad.sum_to_size(grad.shape[-1]) if wanted else None
    return (*_product_backward(ctx, grad), dbias)


def _transposed_backward(ctx, grad):
    (weight,) = ctx.saved_tensors
    return torch.ops.qmm.linear(grad, weight, ctx.format), None, None, None, None


torch.library.register_autograd("qmm::mul_mv", _product_backward, setup_context=_save_weight)
torch.library.register_autograd("qmm::linear", _linear_backward, setup_context=_save_weight)
torch.library.register_autograd("qmm::mul_mm_t", _transposed_backward, setup_context=_save_weight)


def _save_weight_mm(ctx, inputs, keyword_only_inputs, output):
    _save_weight(ctx, inputs, output)


torch.library.register_autograd("qmm::mul_mm", _product_backward, setup_context=_save_weight_mm)
