"""What Metal forbids or leaves undefined is reported by metalsim, with its place."""

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import missing

from tests import metalsim

TILED = Path(metalsim.__file__).parent / "shaders" / "tiled.metal"
ORDERS = ["fifo", "lifo", "random"]


@pytest.fixture(autouse=True)
def _clang():
    if not metalsim.available():
        missing("clang-19 is not installed")


SHARED = "threadgroup float s[64]; s[t] = t; "
ATOMIC = "atomic_fetch_add_explicit((device atomic_uint*)o, 1u, memory_order_relaxed);"
FAULTS = {
    "write one past a buffer": ("o[t + 1] = 1;", "out of bounds"),
    "read one past a buffer": ("float x = o[t + 1]; if (x > 5) o[t] = x;", "out of bounds"),
    "write past threadgroup memory": ("threadgroup float s[64]; s[t + 1] = t;", "out of bounds"),
    "read past threadgroup memory": (
        SHARED + "threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = s[t + 64];",
        "out of bounds",
    ),
    "matrix past a buffer": (
        "simdgroup_float8x8 m; simdgroup_load(m, o + 1, 8); o[t] = m.thread_elements()[0];",
        "out of bounds",
    ),
    "uninitialized read": ("threadgroup float s[64]; if (t) s[t] = t; o[t] = s[t];", "uninitialized read"),
    "uninitialized update": ("threadgroup float s[64]; s[t] += t; o[t] = s[t];", "uninitialized read"),
    "simd_sum is no fence": (SHARED + "float x = simd_sum(1.0f); if (t % 32 == 31) o[t] = x + s[t - 31];", "race"),
    "barrier without memory": (SHARED + "threadgroup_barrier(mem_flags::mem_none); o[t] = s[t ^ 1];", "race"),
    "simdgroup barrier between simdgroups": (
        "threadgroup float s[64]; s[t] = t; threadgroup_barrier(mem_flags::mem_threadgroup); s[t] = 1; "
        "simdgroup_barrier(mem_flags::mem_threadgroup); o[t] = s[63 - t];",
        "race",
    ),
    "device write by two": ("o[0] = t;", "race"),
    "device read and write": ("float x = o[t ^ 1]; o[t] = x;", "race"),
    "atomic and plain": (ATOMIC + " if (t == 5) o[0] = 1;", "race"),
    "atomic load and plain write": (
        "uint x = atomic_load_explicit((device atomic_uint*)o, memory_order_relaxed); if (t == 5) o[0] = x;",
        "race",
    ),
    "barrier in a branch": ("if (t < 33) threadgroup_barrier(mem_flags::mem_device); o[t] = 1;", "divergent barrier"),
    "two barriers": (
        "if (t < 33) threadgroup_barrier(mem_flags::mem_device); else threadgroup_barrier(mem_flags::mem_device);",
        "divergent barrier",
    ),
    "barrier in another pass": (
        "for (uint i = 0; i < 2; i++) if (i == t / 32) threadgroup_barrier(mem_flags::mem_device);",
        "divergent barrier",
    ),
    "barrier after fewer passes": (
        "for (uint i = 0; i <= t % 2; i++) threadgroup_barrier(mem_flags::mem_device);",
        "divergent barrier",
    ),
    "barrier in a lambda called twice": (
        "auto f = [] { threadgroup_barrier(mem_flags::mem_device); }; if (t < 32) f(); else f();",
        "divergent barrier",
    ),
    "simdgroup barrier by half a simdgroup": (
        "if (t % 32 < 16) simdgroup_barrier(mem_flags::mem_device);",
        "divergent barrier",
    ),
    "simdgroup barrier without memory by half a simdgroup": (
        "if (t % 32 < 16) simdgroup_barrier(mem_flags::mem_none);",
        "divergent barrier",
    ),
    "inactive lane": ("if (t % 32 < 16) o[t] = simd_shuffle(1.0f, 20);", "inactive lane"),
    "matrix by half a simdgroup": (
        "simdgroup_float8x8 m; if (t % 32 < 16) simdgroup_load(m, o);",
        "divergent simdgroup",
    ),
    "matrix in differing passes": (
        "simdgroup_float8x8 m; for (uint i = 0; i <= t % 2; i++) simdgroup_load(m, o);",
        "divergent simdgroup",
    ),
    "lane inactive in this pass": (
        "float x = 0; for (uint i = 0; i <= t % 2; i++) x += simd_shuffle_xor(1.0f, 1); o[t] = x;",
        "inactive lane",
    ),
    "misaligned": ("if (t == 3) *(device float2*)(o + 1) = 1;", "misaligned access"),
    "division": ("int z = int(o[t]); o[t] = 5 / z;", "division"),
    "vector remainder": ("int2 z = int2(o[t]); o[t] = (int2(5) % z).x;", "division"),
}


def shader(body: str) -> metalsim.Library:
    parameters = "device float* o [[buffer(0)]], uint t [[thread_index_in_threadgroup]]"
    return metalsim.compile(
        f"#include <metal_stdlib>\nusing namespace metal;\nkernel void k({parameters}) {{\n{body}\n}}\n"
    )


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_reported_in_every_order(name):
    body, kind = FAULTS[name]
    kernel = shader(body).kernel("k")
    for order in ORDERS:
        out = np.zeros(65, np.float32)[:64]  # the element past the end belongs to the same allocation
        with pytest.raises(metalsim.Fault) as caught:
            kernel.dispatch(grid=64, threadgroup=64, buffers=[out], order=order)
        fault = caught.value
        assert fault.kind.startswith(kind), str(fault)
        assert (fault.file, fault.line, fault.kernel) == ("<source>", 4, "k")
        assert fault.threadgroup == (0, 0, 0) and fault.thread[0] < 64


def test_race_between_threadgroups():
    with pytest.raises(metalsim.Fault, match="another threadgroup"):
        shader("o[t] = 1;").kernel("k").dispatch(groups=2, threadgroup=64, buffers=[np.zeros(64, np.float32)])


CLEAN = {
    "atomics": ATOMIC,
    "atomic loads and updates": "atomic_load_explicit((device atomic_uint*)o, memory_order_relaxed); " + ATOMIC,
    "atomic and plain reads": (
        "o[t] = t; threadgroup_barrier(mem_flags::mem_device); "
        "uint x = atomic_load_explicit((device atomic_uint*)o, memory_order_relaxed); if (o[0] > x + 5) o[t] = 1;"
    ),
    "barrier": SHARED + "threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = s[63 - t];",
    "simdgroup barrier": SHARED + "simdgroup_barrier(mem_flags::mem_threadgroup); o[t] = s[t ^ 1];",
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_kernels_are_not_reported(name):
    kernel = shader(CLEAN[name]).kernel("k")
    for seed in range(100):
        kernel.dispatch(grid=64, threadgroup=64, buffers=[np.zeros(64, np.float32)], seed=seed)


def run_tiled(library: metalsim.Library, order: str, seed: int = 0) -> None:
    m = n = k = 64
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)
    out = np.zeros((m, n), np.float32)
    library.kernel("tiled").dispatch(
        groups=(2, 2), threadgroup=128, buffers=[a, b, out], bytes={3: np.array([m, n, k], np.uint32)},
        threadgroup_memory=[4096], order=order, seed=seed,
    )  # fmt: skip


BARRIER = re.compile(r"threadgroup_barrier\(mem_flags::mem_threadgroup\);")


@pytest.mark.parametrize("number", range(4))
def test_tiled_product_without_one_barrier(number):
    source = TILED.read_text()
    places = list(BARRIER.finditer(source))
    assert len(places) == 4
    mutant = source[: places[number].start()] + source[places[number].end() :]
    library = metalsim.compile(mutant)
    for order in ORDERS:
        with pytest.raises(metalsim.Fault, match=r"race|uninitialized read"):
            run_tiled(library, order)


# What is changed in the tiled product, and what must be reported.
PLANTED = {
    "a row past the end of a": ("(a + (row + r) * s.k + k + q);", "(a + (row + r + 1) * s.k + k + q);",
                                "out of bounds"),
    "four columns past the end of b": ("(b + (column + r) * s.k + k + q + 4)", "(b + (column + r) * s.k + k + q + 8)",
                                       "out of bounds"),
    "a column past the end of c": ("c[r * s.n + col] =", "c[r * s.n + col + 1] =", "race|out of bounds"),
    "a write past the tile": ("(tb + r * 32 + q + 4) =", "(tb + r * 32 + q + 8) =", "out of bounds|race|uninitialized"),
    "a matrix past the tile": ("tb + i * 8 * 32 + kk * 8, 32", "tb + i * 8 * 32 + kk * 8 + 8, 32", "out of bounds"),
    "a store past the tile": ("out + simd * 8 * 32 + i * 8, 32", "out + simd * 8 * 32 + i * 8 + 8, 32",
                              "race|out of bounds|uninitialized"),
    "half of a tile never written": ("*(threadgroup half4*)(tb + r * 32 + q + 4) =", "(void)", "uninitialized read"),
    "a barrier for half of the threads": (
        "for (short kk = 0;", "if (t < 64) threadgroup_barrier(mem_flags::mem_none);\nfor (short kk = 0;",
        "divergent barrier",
    ),
    "a barrier that some pass earlier": (
        "for (uint k = 0; k < s.k; k += 32) {",
        "for (uint k = 0; k < s.k; k += 32) {\nif (k == 32 * (t / 64)) threadgroup_barrier(mem_flags::mem_none);",
        "divergent barrier",
    ),
    "products by half a simdgroup": (
        "simdgroup_multiply_accumulate(acc[i],", "if (t % 32 < 16) simdgroup_multiply_accumulate(acc[i],",
        "divergent simdgroup matrix",
    ),
    "half4 at a multiple of two": ("(a + (row + r) * s.k + k + q + 4)", "(a + (row + r) * s.k + k + q + 3)",
                                   "misaligned"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_mistake_in_the_tiled_product_is_reported_in_every_order(name):
    right, wrong, kind = PLANTED[name]
    source = TILED.read_text()
    assert source.count(right) == 1
    library = metalsim.compile(source.replace(right, wrong))
    for order in ORDERS:
        with pytest.raises(metalsim.Fault) as caught:
            run_tiled(library, order)
        fault = caught.value
        assert re.search(kind, fault.kind), str(fault)
        assert fault.line > 0 and fault.kernel == "tiled"


def test_tiled_product_is_clean_in_100_orders():
    library = metalsim.compile(TILED)
    for seed in range(100):
        run_tiled(library, "random", seed)


@pytest.mark.parametrize(
    "body, what",
    [
        ("double x = 1; o[t] = x;", "no double"),
        ("static float x = 1; o[t] = x;", "static local"),
        ("o[t] = *new float;", "operator new"),
        ("try { o[t] = 1; } catch (int) {}", "exceptions"),
        ("texture2d<float> x; o[t] = 1;", "'texture2d' is not supported"),
    ],
)
def test_unsupported_source_names_construct_file_and_line(body, what):
    with pytest.raises(metalsim.SourceError, match=f"^<source>:4: .*{what}"):
        shader(body)


CONSTANTS = """
constant int kGiven [[function_constant(0)]];
constant int kOptional [[function_constant(1)]];
constant bool kHas = is_function_constant_defined(kOptional) && kOptional > 0;
kernel void f(device int* x) { x[0] = kGiven + (kHas ? kOptional : 100); }
"""


def test_function_constants_without_a_value():
    """Reading one is a fault; asking whether it has one is not."""
    kernel = metalsim.compile(CONSTANTS).kernel
    x = np.zeros(1, np.int32)
    kernel("f", {"kGiven": 5}).dispatch(grid=1, threadgroup=1, buffers=[x])
    assert x[0] == 105
    kernel("f", {0: 5, 1: 3}).dispatch(grid=1, threadgroup=1, buffers=[x])
    assert x[0] == 8
    with pytest.raises(metalsim.Fault, match="undefined function constant: reads 'kGiven'") as caught:
        kernel("f").dispatch(grid=1, threadgroup=1, buffers=[x])
    assert caught.value.line == 5
