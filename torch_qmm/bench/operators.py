"""Time per call of ``qmm::linear`` against ``F.linear`` with unpacked weights, and against unpacking by gguf-py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import gguf
import torch
from torch.nn import functional as F

from torch_qmm import ops
from torch_qmm.bench.timing import Timing, print_table, side_by_side
from torch_qmm.bench.weights import random_weight
from torch_qmm.formats import Format
from torch_qmm.tensor import QuantTensor

SHAPES = [(4096, 2560), (9728, 2560), (2560, 9728)]  # N, K
TOKENS = [1, 2, 4, 8, 16, 32, 128, 512]
FORMATS = [Format.Q4_0, Format.Q4_K, Format.Q6_K, Format.Q8_0, Format.IQ3_XXS]
DTYPES = [torch.float32, torch.bfloat16]
GGUF_TOKENS = (1, 512)  # gguf-py's unpacking takes the same time whatever the number of tokens
COLD_BYTES = 256 << 20  # more than the caches of any machine this is likely to run on


def run(
    *,
    shapes: list[tuple[int, int]] = SHAPES,
    tokens: list[int] = TOKENS,
    formats: list[Format] = FORMATS,
    dtypes: list[torch.dtype] = DTYPES,
    rounds: int = 7,
    cold: bool = False,
    against_gguf: bool = True,
) -> list[dict[str, object]]:
    """One row per shape, dtype, number of tokens and contender; prints a table for each shape and dtype.

    Args:
        cold: rotate over copies of each weight, 256 MiB in all, so that every call reads it from memory, as the layers
            of a large model do. Else the same weight is used again and again, as published figures are made.
        against_gguf: also time ``gguf.quants.dequantize`` + ``F.linear``.
    """
    rows = []
    for (N, K), dtype in itertools.product(shapes, dtypes):
        weights = {f: _copies(random_weight(f, N, K), cold) for f in formats}
        plain = _copies(torch.randn(N, K).to(dtype), cold)
        table, slow = [], {}
        for M in tokens:
            x = torch.randn(M, K).to(dtype)
            contenders = {f.name: _rotating(partial(ops.linear, x), weights[f]) for f in formats}
            contenders["F.linear"] = _rotating(partial(F.linear, x), plain)
            timings = side_by_side(contenders, rounds=rounds)
            if against_gguf and M in GGUF_TOKENS:
                unpackers = {
                    f"{f.name} gguf-py": partial(_gguf_linear, x, weights[f][0]) for f in formats if _has_gguf(f)
                }
                slow[M] = side_by_side(unpackers, rounds=3)
                timings |= slow[M]
            rows += _rows(N, K, M, dtype, timings)
            table.append(_table_row(M, formats, timings))
        header = ["tokens", *(f"{f.name} ms (ratio)" for f in formats), "F.linear ms"]
        print_table(f"N x K = {N} x {K}, x {dtype}; ratio = F.linear's time / ours", header, table)
        if against_gguf:
            _print_gguf_table(formats, slow)
    return rows


def _rotating(call: Callable, copies: list) -> Callable[[], object]:
    endless = itertools.cycle(copies)
    return lambda: call(next(endless))


def _copies(weight, cold: bool) -> list:
    count = -(-COLD_BYTES // weight.nbytes) if cold else 1
    if isinstance(weight, torch.Tensor):
        return [weight, *(weight.clone() for _ in range(count - 1))]
    return [weight, *(QuantTensor(weight.data.clone(), weight.format) for _ in range(count - 1))]


def _has_gguf(fmt: Format) -> bool:
    return fmt is not Format.Q1_0  # gguf-py has no code to unpack it


def _gguf_linear(x: torch.Tensor, weight: QuantTensor) -> torch.Tensor:
    plain = gguf.quants.dequantize(weight.data.numpy(), gguf.GGMLQuantizationType(weight.format))
    return F.linear(x, torch.from_numpy(plain).to(x.dtype))


def _rows(N: int, K: int, M: int, dtype: torch.dtype, timings: dict[str, Timing]) -> list[dict[str, object]]:
    baseline = timings["F.linear"].median
    return [
        {
            "bench": "operators",
            "N": N,
            "K": K,
            "M": M,
            "dtype": str(dtype),
            "contender": name,
            "ms": timing.median * 1e3,
            "spread": timing.spread,
            "f_linear_over_this": baseline / timing.median,
            "samples_ms": [s * 1e3 for s in timing.samples],
        }
        for name, timing in timings.items()
    ]


def _cell(timing: Timing) -> str:
    return f"{timing.median * 1e3:.2f} +-{timing.spread:.0%}"


def _table_row(M: int, formats: list[Format], timings: dict[str, Timing]) -> list[str]:
    plain = timings["F.linear"]
    ours = [f"{_cell(timings[f.name])} ({plain.median / timings[f.name].median:.2f}x)" for f in formats]
    return [str(M), *ours, _cell(plain)]


def _print_gguf_table(formats: list[Format], slow: dict[int, dict[str, Timing]]) -> None:
    names = [f"{f.name} gguf-py" for f in formats if _has_gguf(f)]
    rows = [[str(M), *(_cell(timings[name]) for name in names)] for M, timings in slow.items()]
    print_table("the same by gguf-py's unpacking and F.linear, ms", ["tokens", *names], rows)
