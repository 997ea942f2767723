"""Metal code that we did not write: torch's own headers, against torch's CPU functions in float64 and numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import missing
from torch import special

from tests import metalsim

INCLUDE = Path(torch.__file__).parent / "include"
PRELUDE = "#include <metal_stdlib>\n#include <c10/metal/{}.h>\nusing namespace metal;\n"
INDEX = "uint i [[thread_position_in_grid]]"


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def checked(request: pytest.FixtureRequest) -> bool:
    return request.param


def compiled(header: str, kernels: str) -> metalsim.Library:
    if not metalsim.available():
        missing("clang-19 is not installed")
    return metalsim.compile(PRELUDE.format(header) + kernels, include_dirs=[INCLUDE])


# name: the Metal expression in a (and b), torch's function, the range of a, the range of b, tolerance. The tolerance
# bounds |error| / (1 + |value|): torch's Metal functions are written for float and are looser than the CPU's.
WIDE, POSITIVE, UNIT, INSIDE = (-8, 8), (0.05, 12), (-1, 1), (-0.99, 0.99)
FUNCTIONS = {
    "erf": ("erf(a)", special.erf, WIDE, None, 1e-6),
    "erfc": ("erfc(a)", special.erfc, WIDE, None, 1e-6),
    "erfcx": ("erfcx(a)", special.erfcx, (-2, 8), None, 2e-6),
    "erfinv": ("erfinv(a)", special.erfinv, INSIDE, None, 2e-6),
    "gamma": ("gamma(a)", lambda a: special.gammaln(a).exp(), (0.1, 8), None, 1e-5),
    "lgamma": ("log_gamma(a)", special.gammaln, (-4.7, 12), None, 2e-5),
    "digamma": ("digamma(a)", special.digamma, (0.05, 12), None, 2e-5),
    "digamma below 0": ("digamma(a)", special.digamma, (-0.9, -0.1), None, 2e-5),
    "trigamma": ("trigamma(a)", lambda a: special.polygamma(1, a), POSITIVE, None, 2e-5),
    "polygamma": ("polygamma(2, a)", lambda a: special.polygamma(2, a), (0.3, 12), None, 2e-5),
    "zeta": ("zeta(a, b)", special.zeta, (1.2, 6), (0.3, 8), 2e-5),
    "igamma": ("igamma(a, b)", special.gammainc, (0.1, 8), (0.05, 12), 2e-5),
    "igammac": ("igammac(a, b)", special.gammaincc, (0.1, 8), (0.05, 12), 2e-5),
    "i0": ("i0(a)", special.i0, WIDE, None, 2e-6),
    "i0e": ("i0e(a)", special.i0e, WIDE, None, 1e-6),
    "i1": ("i1(a)", special.i1, WIDE, None, 2e-6),
    "i1e": ("i1e(a)", special.i1e, WIDE, None, 1e-6),
    "bessel j0": ("bessel_j0_forward(a)", special.bessel_j0, WIDE, None, 2e-6),
    "bessel j1": ("bessel_j1_forward(a)", special.bessel_j1, WIDE, None, 2e-6),
    "bessel y0": ("bessel_y0_forward(a)", special.bessel_y0, POSITIVE, None, 5e-6),
    "bessel y1": ("bessel_y1_forward(a)", special.bessel_y1, POSITIVE, None, 5e-6),
    "modified bessel i0": ("modified_bessel_i0_forward(a)", special.modified_bessel_i0, WIDE, None, 2e-6),
    "modified bessel i1": ("modified_bessel_i1_forward(a)", special.modified_bessel_i1, WIDE, None, 2e-6),
    "modified bessel k0": ("modified_bessel_k0_forward(a)", special.modified_bessel_k0, POSITIVE, None, 5e-6),
    "modified bessel k1": ("modified_bessel_k1_forward(a)", special.modified_bessel_k1, POSITIVE, None, 5e-6),
    "scaled k0": ("scaled_modified_bessel_k0_forward(a)", special.scaled_modified_bessel_k0, POSITIVE, None, 5e-6),
    "scaled k1": ("scaled_modified_bessel_k1_forward(a)", special.scaled_modified_bessel_k1, POSITIVE, None, 5e-6),
    "spherical bessel": ("spherical_bessel_j0(a)", special.spherical_bessel_j0, WIDE, None, 2e-6),
    "sinc": ("sinc(a)", special.sinc, WIDE, None, 2e-6),
    "entr": ("entr(a)", special.entr, (0, 8), None, 2e-6),
    "xlogy": ("xlogy(a, b)", special.xlogy, WIDE, POSITIVE, 2e-6),
    "xlog1py": ("xlog1py(a, b)", special.xlog1py, WIDE, POSITIVE, 2e-6),
    "logaddexp": ("logaddexp(a, b)", torch.logaddexp, WIDE, WIDE, 2e-6),
    "logaddexp2": ("logaddexp2(a, b)", torch.logaddexp2, WIDE, WIDE, 2e-6),
    "log1p": ("log1p(a)", torch.log1p, (-0.9, 8), None, 1e-6),
    # the header leaves out the low part of log(2), so it isn't as exact as its comment says
    "expm1": ("expm1f(a)", torch.expm1, (-8, 4), None, 2e-5),
    "hypot": ("hypot(a, b)", torch.hypot, POSITIVE, POSITIVE, 1e-6),
    "remainder": ("remainder(a, b)", torch.remainder, WIDE, (0.5, 3), 2e-6),
    "pow": ("pow(a, b)", torch.pow, POSITIVE, (-3, 3), 1e-5),
    "chebyshev t": (
        "chebyshev_polynomial_t_forward(a, 5)", lambda a: special.chebyshev_polynomial_t(a, 5), UNIT, None, 1e-5),
    "chebyshev u": (
        "chebyshev_polynomial_u_forward(a, 5)", lambda a: special.chebyshev_polynomial_u(a, 5), UNIT, None, 1e-5),
    "chebyshev v": (
        "chebyshev_polynomial_v_forward(a, 5)", lambda a: special.chebyshev_polynomial_v(a, 5), INSIDE, None, 1e-5),
    "chebyshev w": (
        "chebyshev_polynomial_w_forward(a, 5)", lambda a: special.chebyshev_polynomial_w(a, 5), INSIDE, None, 1e-5),
    "shifted chebyshev t": (
        "shifted_chebyshev_polynomial_t_forward(a, 5)",
        lambda a: special.shifted_chebyshev_polynomial_t(a, 5), (0.01, 0.99), None, 1e-5),
    "shifted chebyshev u": (
        "shifted_chebyshev_polynomial_u_forward(a, 5)",
        lambda a: special.shifted_chebyshev_polynomial_u(a, 5), (0.01, 0.99), None, 1e-5),
    "shifted chebyshev v": (
        "shifted_chebyshev_polynomial_v_forward(a, 5)",
        lambda a: special.shifted_chebyshev_polynomial_v(a, 5), (0.01, 0.99), None, 1e-5),
    "shifted chebyshev w": (
        "shifted_chebyshev_polynomial_w_forward(a, 5)",
        lambda a: special.shifted_chebyshev_polynomial_w(a, 5), (0.01, 0.99), None, 1e-5),
    "hermite h": ("hermite_polynomial_h_forward(a, 4)", lambda a: special.hermite_polynomial_h(a, 4), UNIT, None, 1e-5),
    "hermite he": (
        "hermite_polynomial_he_forward(a, 4)", lambda a: special.hermite_polynomial_he(a, 4), UNIT, None, 1e-5),
}  # fmt: skip


def special_functions() -> str:
    parameters = f"device const float* x, device const float* y, device float* o, {INDEX}"
    return "".join(
        f"kernel void k{n}({parameters}) {{ float a = x[i], b = y[i]; o[i] = c10::metal::{expression}; }}\n"
        for n, (expression, *_) in enumerate(FUNCTIONS.values())
    )


@pytest.fixture(scope="module")
def library() -> metalsim.Library:
    return compiled("igamma", "#include <c10/metal/special_math.h>\n" + special_functions())


def spread(bounds: tuple[float, float] | None, seed: int) -> np.ndarray:
    low, high = bounds or (0, 1)
    values = np.linspace(low, high, 128, dtype=np.float32)
    return np.random.default_rng(seed).permutation(values) if seed else values


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_function_agrees_with_torch(library, checked, name):
    expression, reference, first, second, tolerance = FUNCTIONS[name]
    a, b, out = spread(first, 0), spread(second, 1), np.zeros(128, np.float32)
    kernel = library.kernel(f"k{list(FUNCTIONS).index(name)}")
    kernel.dispatch(grid=128, threadgroup=64, buffers=[a, b, out], checked=checked)
    arguments = [torch.from_numpy(v).double() for v in ([a, b] if second else [a])]
    want = reference(*arguments).numpy()
    assert np.max(np.abs(out - want) / (1 + np.abs(want))) < tolerance, expression


def test_special_functions_pass_strict_mode():
    if not metalsim.available():
        missing("clang-19 is not installed")
    text = PRELUDE.format("igamma") + "#include <c10/metal/special_math.h>\n"
    kernels = special_functions()
    metalsim.strict(text + kernels, [INCLUDE], recursion=True)
    with pytest.raises(metalsim.SourceError, match=r"special_math\.h:\d+: Metal has no recursion: '\w+<float>'"):
        metalsim.strict(text + kernels, [INCLUDE])


def philox(seed: int, index: np.ndarray, rounds: int) -> np.ndarray:
    """Philox4x32 as in the paper: two products of 32 bits, keys that grow by Weyl constants."""
    counter = [np.zeros_like(index), np.zeros_like(index), index >> np.uint64(32), index & np.uint64(0xFFFFFFFF)]
    key, mask = [seed >> 32, seed & 0xFFFFFFFF], np.uint64(0xFFFFFFFF)
    for _ in range(rounds):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (second >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]), second & mask,
            (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]), first & mask,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter, 1).astype(np.uint32)


def test_random_numbers(checked):
    kernel = compiled(
        "random",
        "kernel void k(constant long& seed, device uint4* bits, device float* normal, device long* whole,\n"
        f"{INDEX}) {{\n"
        "long index = i + 0x300000000l; bits[i] = c10::metal::philox4::rand(seed, index);\n"
        "normal[i] = c10::metal::randn(seed, index); whole[i] = c10::metal::randint64(seed, index, -5, 20); }\n",
    ).kernel("k")
    seed, count = 0x123456789ABCDEF, 4096
    bits, normal, whole = np.zeros((count, 4), np.uint32), np.zeros(count, np.float32), np.zeros(count, np.int64)
    kernel.dispatch(
        grid=count, threadgroup=256, buffers=[None, bits, normal, whole], bytes={0: np.int64(seed)}, checked=checked
    )
    want = philox(seed, np.arange(count, dtype=np.uint64) + np.uint64(0x300000000), 9)  # the header runs 9 rounds
    assert np.array_equal(bits, want)
    u1, u2 = (1 - (want[:, k] & 0x7FFFFFFF).astype(np.float64) / 2**31 for k in (0, 1))
    np.testing.assert_allclose(normal, np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2), atol=2e-3)
    assert whole.min() == -5 and whole.max() == 19


def test_reductions(checked):
    kernel = compiled(
        "reduction_utils",
        "kernel void k(device const float* x, device float* o, uint t [[thread_index_in_threadgroup]],\n"
        "uint n [[threads_per_threadgroup]]) { using namespace c10::metal;\n"
        "threadgroup float a[32]; threadgroup float b[32]; threadgroup float c[32]; threadgroup float d[32];\n"
        "threadgroup uint where[32]; float values[5] = {threadgroup_sum(a, x[t], t, n),\n"
        "threadgroup_max(b, x[t], t, n), threadgroup_min(c, x[t], t, n),\n"
        "(float)threadgroup_argmax(d, where, x[t], t, t, n), c10::metal::simd_sum(x[t])};\n"
        "for (uint k = 0; k < 5; k++) o[k * n + t] = values[k]; }\n",
    ).kernel("k")
    for size in (256, 96):
        x, out = np.random.default_rng(size).permutation(size).astype(np.float32), np.zeros((5, size), np.float32)
        kernel.dispatch(grid=size, threadgroup=size, buffers=[x, out], checked=checked)
        assert [row[0] for row in out[:4]] == [x.sum(), size - 1, 0, x.argmax()]
        assert np.array_equal(out[4], x.reshape(-1, 32).sum(1).repeat(32))


def test_indexing(checked):
    kernel = compiled(
        "indexing",
        "struct half_more_functor { template <typename T> T operator()(const T x) { return T(x * 1.5f); } };\n"
        "REGISTER_UNARY_OP(half_more, float, float); REGISTER_UNARY_OP(half_more, half, half);\n",
    )
    x = np.random.default_rng(0).standard_normal(67).astype(np.float32)
    for name, dtype in (("float", np.float32), ("half", np.float16)):
        for form, sizes in (("dense", {2: np.uint32(67)}), ("dense_scalar", {})):
            out = np.zeros(67, dtype)
            function = kernel.kernel(f"half_more_{form}_{name}_{name}")
            function.dispatch(grid=67, threadgroup=32, buffers=[out, x.astype(dtype)], bytes=sizes, checked=checked)
            np.testing.assert_allclose(out, x.astype(dtype) * dtype(1.5), rtol=1e-3)
    # half to bfloat, by the kernel that converts on its way out
    out, source = np.zeros(67, np.int16), x.astype(np.float16)
    sizes = {2: np.array([2, 15], np.uint32)}  # bytes an element, and torch's number of bfloat16
    cast = kernel.kernel("half_more_dense_castout_half")
    cast.dispatch(grid=67, threadgroup=32, buffers=[out, source], bytes=sizes, checked=checked)
    got = torch.from_numpy(out).view(torch.bfloat16).float().numpy()
    np.testing.assert_allclose(got, source.astype(np.float32) * 1.5, rtol=1e-2)


@pytest.mark.parametrize(
    "kind, dtype", [("float", np.float32), ("half", np.float16), ("int", np.int32), ("short", np.int16)]
)
def test_atomics(checked, kind, dtype):
    kernel = compiled(
        "atomic",
        f"kernel void k(device c10::metal::AtomicType_t<{kind}>* o, device const uint* at, {INDEX}) {{\n"
        f"c10::metal::AtomicType<{kind}>::atomic_add(o, at[i], ({kind})(1 + i % 3)); }}\n",
    ).kernel("k")
    at = np.random.default_rng(0).integers(0, 16, 256).astype(np.uint32)
    out = np.zeros(16, dtype)
    kernel.dispatch(grid=256, threadgroup=64, buffers=[out, at], checked=checked)
    assert np.array_equal(out, np.bincount(at, 1 + np.arange(256) % 3, 16).astype(dtype))
