"""The functions of metal_stdlib on metalsim against numpy in float64 and Python's integers, edge values included."""

import math

import numpy as np
import pytest
from conftest import missing

from tests import metalsim

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
INDEX = "uint i [[thread_position_in_grid]]"


@pytest.fixture(autouse=True)
def _clang():
    if not metalsim.available():
        missing("clang-19 is not installed")


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def checked(request: pytest.FixtureRequest) -> bool:
    return request.param


# ---- float functions

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 1.1754944e-38]
EDGES += [3.4e38, -3.4e38, 1e10, 8388609.0, 16777216.0, 0.99999994, 1e-8, 88.5, -103.0, 3.1415927, 700.25]
VALUES = np.array([*EDGES, *np.random.default_rng(0).standard_normal(70) * 3, *np.linspace(0.01, 0.99, 32)], np.float32)


def sign(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 0.0, np.where(x == 0, x, np.sign(x)))


def nearest(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def fract(x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), np.nan, np.minimum(x - np.floor(x), np.float64(np.float32(0.99999994))))


def saturate(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 0, np.clip(x, 0, 1))


def pi_of(f):
    # exact periods: the argument is reduced before pi comes in
    return lambda x: f(np.pi * np.where(np.isinf(x), np.nan, np.fmod(x, 2)))


# By name: numpy's function and the error allowed in units in the last place (of a float).
UNARY = {
    "exp": (np.exp, 2), "exp2": (np.exp2, 2), "exp10": (lambda x: 10.0**x, 4), "log": (np.log, 2), "log2": (np.log2, 2),
    "log10": (np.log10, 2), "sqrt": (np.sqrt, 0.5), "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5), "sin": (np.sin, 2),
    "cos": (np.cos, 2), "tan": (np.tan, 3), "sinh": (np.sinh, 3), "cosh": (np.cosh, 3), "tanh": (np.tanh, 3),
    "asin": (np.arcsin, 2), "acos": (np.arccos, 2), "atan": (np.arctan, 2), "asinh": (np.arcsinh, 3),
    "acosh": (np.arccosh, 3), "atanh": (np.arctanh, 3), "sinpi": (pi_of(np.sin), 4), "cospi": (pi_of(np.cos), 4),
    "floor": (np.floor, 0), "ceil": (np.ceil, 0), "round": (nearest, 0), "rint": (np.rint, 0), "trunc": (np.trunc, 0),
    "fabs": (np.abs, 0), "abs": (np.abs, 0), "sign": (sign, 0), "fract": (fract, 0.5), "saturate": (saturate, 0),
    "precise::exp": (np.exp, 2), "fast::exp": (np.exp, 2), "precise::sqrt": (np.sqrt, 0.5), "fast::sin": (np.sin, 2),
}  # fmt: skip
# Where a result is within this of zero, cancellation in a reduced argument counts, not the last place.
NEAR_ZERO = {"sinpi": 1e-7, "cospi": 1e-7}


def check_close(name: str, got: np.ndarray, want: np.ndarray, places: float) -> None:
    rounded = want.astype(np.float32)
    exact = np.isnan(rounded) | np.isinf(rounded)
    assert np.array_equal(np.isnan(got), np.isnan(rounded)), name
    assert np.array_equal(got[exact], rounded[exact], equal_nan=True), name
    error = np.abs(got[~exact].astype(np.float64) - want[~exact])
    allowed = np.spacing(np.abs(rounded[~exact])).astype(np.float64) * places + NEAR_ZERO.get(name, 0)
    assert np.all(error <= allowed), (name, VALUES[: len(got)][~exact][error > allowed][:5] if len(got) else 0)


@pytest.fixture(scope="module")
def unary() -> metalsim.Library:
    kernels = "".join(
        f"kernel void k{n}(device const float* x, device float* o, device half4* h, {INDEX}) "
        f"{{ o[i] = {name}(x[i]); h[i] = {name}(half4(x[i], 0.25h, 0.5h, x[i])); }}\n"
        for n, name in enumerate(UNARY)
    )
    return metalsim.compile(HEADER + kernels)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unary_function(unary, checked, name):
    out, halves = np.zeros_like(VALUES), np.zeros((len(VALUES), 4), np.float16)
    kernel = unary.kernel(f"k{list(UNARY).index(name)}")
    kernel.dispatch(grid=len(VALUES), threadgroup=32, buffers=[VALUES, out, halves], checked=checked)
    function, places = UNARY[name]
    check_close(name, out, function(VALUES.astype(np.float64)), places)
    # vectors of half: computed in float, rounded once
    x = VALUES.astype(np.float16)
    want = np.stack([function(v.astype(np.float64)) for v in (x, 0 * x + 0.25, 0 * x + 0.5, x)], 1)
    want[:, 1:3] = function(np.array([0.25, 0.5]))
    want = want.astype(np.float16)
    assert np.array_equal(np.isnan(halves), np.isnan(want))
    finite = np.isfinite(want)
    assert np.array_equal(np.isinf(halves), np.isinf(want))
    steps = np.abs(halves.astype(np.float64) - want)[finite] / np.spacing(np.abs(want[finite])).astype(np.float64)
    assert steps.max() <= (1 if places else 0)


BINARY = {
    "pow": (np.power, 2), "powr": (np.power, 2), "atan2": (np.arctan2, 2), "fmod": (np.fmod, 0),
    "divide": (np.divide, 1), "copysign": (np.copysign, 0), "fmin": (np.fmin, 0), "fmax": (np.fmax, 0),
    "min": (np.fmin, 0), "max": (np.fmax, 0),
    "fdim": (lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0)), 0.5),
    "step": (lambda edge, x: np.where(x < edge, 0.0, 1.0), 0),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary_functions(checked):
    x, y = (v.ravel().astype(np.float32) for v in np.meshgrid(VALUES[:60], VALUES[:60]))
    kernels = "".join(
        f"kernel void k{n}(device const float* x, device const float* y, device float* o, device float2* v, {INDEX}) "
        f"{{ o[i] = {name}(x[i], y[i]); v[i] = {name}(float2(x[i], 1), float2(y[i], 2)); }}\n"
        for n, name in enumerate(BINARY)
    )
    library = metalsim.compile(HEADER + kernels)
    for n, (name, (function, places)) in enumerate(BINARY.items()):
        out, vectors = np.zeros_like(x), np.zeros((len(x), 2), np.float32)
        buffers = [x, y, out, vectors]
        library.kernel(f"k{n}").dispatch(grid=len(x), threadgroup=64, buffers=buffers, checked=checked)
        first, second = x.astype(np.float64), y.astype(np.float64)
        if name == "powr":
            first = np.where(first < 0, np.nan, first)
            chosen = ~np.isnan(first) & ~np.isnan(second) & (first != 1) & (second != 0) & np.isfinite(first * second)
        else:
            chosen = np.ones(len(x), bool)
        want = function(first, second)
        check_close(name, out[chosen], want[chosen], places)
        assert np.array_equal(vectors[:, 0], out, equal_nan=True), name


# ---- other functions of float: the expression, what it is in numpy

OTHER = {
    "fma(a, b, c)": lambda a, b, c: a * b + c,
    "mix(a, b, 0.25f)": lambda a, b, c: a + (b - a) * 0.25,
    "clamp(a, -0.5f, 0.75f)": lambda a, b, c: np.clip(a, -0.5, 0.75),
    "smoothstep(-1.0f, 1.0f, a)": lambda a, b, c: (t := np.clip((a + 1) / 2, 0, 1)) * t * (3 - 2 * t),
    "median3(a, b, c)": lambda a, b, c: np.median([a, b, c], 0),
    "min3(a, b, c)": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "max3(a, b, c)": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "select(a, b, c > 0)": lambda a, b, c: np.where(c > 0, b, a),
    "select(float2(a, b), float2(c), bool2(a > 0, b > 0)).y": lambda a, b, c: np.where(b > 0, c, b),
    "ldexp(a, 5) + ldexp(b, -3)": lambda a, b, c: a * 32 + b / 8,
    "float(ilogb(a))": lambda a, b, c: np.floor(np.log2(np.abs(a))),
    "frexp(a, e) + 100 * e": lambda a, b, c: np.frexp(a)[0] + 100 * np.frexp(a)[1],
    "modf(a, w) + 10 * w": lambda a, b, c: np.modf(a)[0] + 10 * np.modf(a)[1],
    "sincos(a, w) + 10 * w": lambda a, b, c: np.sin(a) + 10 * np.cos(a),
    "dot(float3(a, b, c), float3(b, c, a))": lambda a, b, c: a * b + b * c + c * a,
    "cross(float3(a, b, c), float3(c, a, b)).y": lambda a, b, c: c * c - a * b,
    "length(float4(a, b, c, 1))": lambda a, b, c: np.sqrt(a * a + b * b + c * c + 1),
    "length_squared(float2(a, b))": lambda a, b, c: a * a + b * b,
    "distance(float2(a, b), float2(c, 1))": lambda a, b, c: np.hypot(a - c, b - 1),
    "normalize(float2(a, b)).x": lambda a, b, c: a / np.hypot(a, b),
    "any(float2(a, b) > 0)": lambda a, b, c: (a > 0) | (b > 0),
    "all(float2(a, b) > 0)": lambda a, b, c: (a > 0) & (b > 0),
    "isordered(a, b) + 2 * isunordered(a, NAN)": lambda a, b, c: 3 + 0 * a,
    "unpack_unorm4x8_to_float(as_type<uint>(a)).z": lambda a, b, c: (a.view(np.uint32) >> 16 & 255) / 255,
    "unpack_snorm4x8_to_float(as_type<uint>(a)).w": lambda a, b, c: np.maximum(
        (a.view(np.int32) >> 24).astype(np.float64) / 127, -1
    ),
    "as_type<float>(as_type<uint>(a) + 1)": lambda a, b, c: (a.view(np.uint32) + np.uint32(1)).view(np.float32),
    "as_type<half2>(as_type<uint>(b)).x": lambda a, b, c: b.view(np.float16)[::2],
    "float(as_type<ushort2>(a).y)": lambda a, b, c: a.view(np.uint16)[1::2],
    "float(as_type<uint2>(as_type<ulong>(uint2(7, i))).y)": lambda a, b, c: np.arange(len(a)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_other_float_functions(checked):
    a, b, c = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)
    kernels = "".join(
        f"kernel void k{n}(device const float* x, device float* o, {INDEX}, uint n [[threads_per_grid]]) "
        f"{{ float a = x[i], b = x[n + i], c = x[2 * n + i], w; int e; (void)w; (void)e; o[i] = {expression}; }}\n"
        for n, expression in enumerate(OTHER)
    )
    # two statements, because the order of the operands of + is not fixed
    kernels = kernels.replace("frexp(a, e) + 100 * e", "frexp(a, e); o[i] += 100 * e")
    for name in ("modf", "sincos"):
        kernels = kernels.replace(f"{name}(a, w) + 10 * w", f"{name}(a, w); o[i] += 10 * w")
    library, x = metalsim.compile(HEADER + kernels), np.stack([a, b, c])
    for n, (expression, function) in enumerate(OTHER.items()):
        out = np.zeros(96, np.float32)
        library.kernel(f"k{n}").dispatch(grid=96, threadgroup=32, buffers=[x, out], checked=checked)
        arguments = (a, b, c) if "as_type" in expression else (v.astype(np.float64) for v in (a, b, c))
        want = np.asarray(function(*arguments), np.float64)
        np.testing.assert_allclose(out, want, rtol=3e-6, atol=2e-6, err_msg=expression)


PREDICATES = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit,
    "isnormal": lambda x: np.isfinite(x) & (np.abs(x) >= np.float32(1.17549435e-38)),
}  # fmt: skip


def test_predicates(checked):
    body = "".join(
        f"o[i] |= {name}(x[i]) << {2 * n} | {name}(float2(1, x[i])).y << {2 * n + 1};"
        for n, name in enumerate(PREDICATES)
    )
    kernel = metalsim.compile(f"{HEADER}kernel void k(device const float* x, device uint* o, {INDEX}) {{ {body} }}\n")
    out = np.zeros(len(VALUES), np.uint32)
    kernel.kernel("k").dispatch(grid=len(VALUES), threadgroup=32, buffers=[VALUES, out], checked=checked)
    for n, (name, function) in enumerate(PREDICATES.items()):
        assert np.array_equal(out >> 2 * n & 3, 3 * function(VALUES)), name


# ---- integers

INTEGERS = {
    "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32, "uint": np.uint32,
    "long": np.int64, "ulong": np.uint64,
}  # fmt: skip
# Python's integers, the number of bits, whether signed; results are taken modulo 2**bits.
INTEGER_FUNCTIONS = {
    "popcount(a)": lambda a, b, n, s: (a % 2**n).bit_count(),
    "clz(a)": lambda a, b, n, s: n - (a % 2**n).bit_length(),
    "ctz(a)": lambda a, b, n, s: ((a & -a) % 2**n).bit_length() - 1 if a else n,
    "reverse_bits(a)": lambda a, b, n, s: int(f"{a % 2**n:0{n}b}"[::-1], 2),
    "abs(a)": lambda a, b, n, s: abs(a),
    "min(a, b)": lambda a, b, n, s: min(a, b),
    "max(a, b)": lambda a, b, n, s: max(a, b),
    "clamp(a, T(3), T(50))": lambda a, b, n, s: min(max(a, 3), 50),
    "rotate(a, b)": lambda a, b, n, s: ((a % 2**n) << (b % n)) | ((a % 2**n) >> (n - b % n)),
    "absdiff(a, b)": lambda a, b, n, s: abs(a - b),
    "hadd(a, b)": lambda a, b, n, s: (a + b) >> 1,
    "rhadd(a, b)": lambda a, b, n, s: (a + b + 1) >> 1,
    "mulhi(a, b)": lambda a, b, n, s: (a * b) >> n,
    "addsat(a, b)": lambda a, b, n, s: saturated(a + b, n, s),
    "subsat(a, b)": lambda a, b, n, s: saturated(a - b, n, s),
    "extract_bits(a, 2u, 5u)": lambda a, b, n, s: signed((a >> 2) % 32, 5) if s else (a >> 2) % 32,
    "insert_bits(a, b, 3u, 4u)": lambda a, b, n, s: (a & ~(15 << 3)) | (b % 16) << 3,
    "a / T(b | 1)": lambda a, b, n, s: saturated(quotient(a, b | 1), n + 1, s),
    "a % T(b | 1)": lambda a, b, n, s: a - quotient(a, b | 1) * (b | 1),
}
FOR_INT = {"mul24(a & 4095, b & 4095)": lambda a, b: (a & 4095) * (b & 4095),
           "mad24(a & 4095, b & 4095, a)": lambda a, b: (a & 4095) * (b & 4095) + a}  # fmt: skip


def saturated(x: int, bits: int, is_signed: bool) -> int:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    return min(max(x, low), high)


def signed(x: int, bits: int) -> int:
    return x - 2**bits if x >= 2 ** (bits - 1) else x


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.fixture(scope="module")
def integers() -> metalsim.Library:
    functions = list(INTEGER_FUNCTIONS)
    kernels = "".join(
        f"kernel void {kind}_functions(device const {kind}* x, device {kind}* o, {INDEX}, uint n [[threads_per_grid]]) "
        f"{{ typedef {kind} T; T a = x[i], b = x[n + i]; "
        + "".join(f"o[{k} * n + i] = T({f});" for k, f in enumerate(functions))
        + "}\n"
        for kind in INTEGERS
    )
    kernels += f"kernel void products(device const int* x, device int* o, {INDEX}, uint n [[threads_per_grid]]) "
    kernels += "{ int a = x[i], b = x[n + i]; "
    kernels += "".join(f"o[{k} * n + i] = {f};" for k, f in enumerate(FOR_INT)) + "}\n"
    return metalsim.compile(HEADER + kernels)


def pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    limits = np.iinfo(dtype)
    edges = [0, 1, 2, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1, limits.max // 2, limits.max // 3]
    a, b = (v.ravel() for v in np.meshgrid(np.array(edges, dtype), np.array(edges, dtype)))
    keep = ~((a == limits.min) & (b.astype(object) == -1) & (limits.min < 0))
    return a[keep], b[keep]


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_functions(integers, checked, kind):
    dtype = INTEGERS[kind]
    a, b = pairs(dtype)
    count, bits, is_signed = len(a), 8 * np.dtype(dtype).itemsize, kind[0] != "u"
    if is_signed:  # the smallest number divided by -1 overflows
        keep = ~((a == np.iinfo(dtype).min) & ((b | 1) == -1))
        a, b = a[keep], b[keep]
        count = len(a)
    out = np.zeros((len(INTEGER_FUNCTIONS), count), dtype)
    kernel = integers.kernel(f"{kind}_functions")
    kernel.dispatch(grid=count, threadgroup=32, buffers=[np.stack([a, b]), out], checked=checked)
    for row, (name, function) in zip(out.tolist(), INTEGER_FUNCTIONS.items(), strict=True):
        for x, y, got in zip(a.tolist(), b.tolist(), row, strict=True):
            assert got % 2**bits == function(x, y, bits, is_signed) % 2**bits, (name, x, y)


def test_products_of_24_bits(integers, checked):
    a, b = np.random.default_rng(0).integers(0, 1 << 20, (2, 64)).astype(np.int32)
    out = np.zeros((2, 64), np.int32)
    integers.kernel("products").dispatch(grid=64, threadgroup=32, buffers=[np.stack([a, b]), out], checked=checked)
    for row, function in zip(out, FOR_INT.values(), strict=True):
        assert np.array_equal(row, function(a.astype(np.int64), b).astype(np.int32))


# ---- packed vectors


def test_packed_vectors_of_every_size(checked):
    kernel = metalsim.compile(
        f"{HEADER}struct Record {{ packed_half3 h; packed_float2 f; packed_uchar4 c; packed_short2 s; }};\n"
        f"kernel void k(device Record* r, device float* o, {INDEX}) {{ Record v = r[i];\n"
        "o[i] = float(v.h.x) + v.f[1] + v.c.w + v.s.y + float4(v.c).x + dot(float3(v.h), float3(1));\n"
        "r[i].h = v.h * 2.0h; r[i].f += float2(1, 2); r[i].c.z = 7; r[i].s = packed_short2(short2(3, 4)); }\n"
    ).kernel("k")
    layout = np.dtype([("h", np.float16, 3), ("f", np.float32, 2), ("c", np.uint8, 4), ("s", np.int16, 2)])
    layout = np.dtype(
        {"names": layout.names, "formats": [layout[n] for n in layout.names], "offsets": [0, 8, 16, 20], "itemsize": 24}
    )
    records, out = np.zeros(16, layout), np.zeros(16, np.float32)
    rng = np.random.default_rng(0)
    for name in layout.names:
        records[name] = rng.integers(0, 50, records[name].shape)
    before = records.copy()
    kernel.dispatch(grid=16, threadgroup=16, buffers=[records, out], checked=checked)
    want = before["h"][:, 0] + before["f"][:, 1] + before["c"][:, 3] + before["s"][:, 1] + before["c"][:, 0]
    assert np.array_equal(out, want + before["h"].sum(1))
    assert np.array_equal(records["h"], before["h"] * 2) and np.array_equal(records["f"], before["f"] + [1, 2])
    assert (records["c"][:, 2] == 7).all() and (records["s"] == [3, 4]).all()
    assert np.array_equal(records["c"][:, [0, 1, 3]], before["c"][:, [0, 1, 3]])


# ---- simdgroup and quadgroup functions

LANE = np.arange(32)
QUAD = LANE // 4 * 4


def filled(x: np.ndarray, delta: int, width: int) -> np.ndarray:
    """Shifted within groups of `width`; where the group ends, the fill (1000 + x) comes in from its other end."""
    base, at = LANE // width * width, LANE % width + delta
    return np.where((at >= 0) & (at < width), x[base + at % width], 1000 + x[base + at % width])


LANES = {
    "simd_sum(x)": lambda x: x.sum(), "simd_product(x % 3 + 1)": lambda x: np.prod((x % 3 + 1).astype(np.uint32)),
    "simd_and(x)": np.bitwise_and.reduce, "simd_or(x)": np.bitwise_or.reduce, "simd_xor(x)": np.bitwise_xor.reduce,
    "simd_min(x)": np.min, "simd_max(x)": np.max,
    "simd_broadcast_first(x)": lambda x: x[0], "simd_broadcast(x, 9)": lambda x: x[9],
    "simd_shuffle(x, (lane * 7) % 32)": lambda x: x[LANE * 7 % 32],
    "simd_shuffle_xor(x, 13)": lambda x: x[LANE ^ 13],
    "simd_shuffle_up(x, 5)": lambda x: np.where(LANE >= 5, x[LANE - 5], x),
    "simd_shuffle_down(x, 5)": lambda x: np.where(LANE + 5 < 32, x[(LANE + 5) % 32], x),
    "simd_shuffle_rotate_up(x, 5)": lambda x: x[LANE - 5],
    "simd_shuffle_rotate_down(x, 5)": lambda x: x[(LANE + 5) % 32],
    "simd_shuffle_and_fill_up(x, 1000 + x, 3)": lambda x: filled(x, -3, 32),
    "simd_shuffle_and_fill_down(x, 1000 + x, 3)": lambda x: filled(x, 3, 32),
    "simd_shuffle_and_fill_up(x, 1000 + x, 3, 8)": lambda x: filled(x, -3, 8),
    "simd_shuffle_and_fill_down(x, 1000 + x, 3, 8)": lambda x: filled(x, 3, 8),
    "simd_prefix_inclusive_sum(x)": lambda x: np.cumsum(x),
    "simd_prefix_exclusive_sum(x)": lambda x: np.cumsum(x) - x,
    "simd_prefix_inclusive_product(x % 2 + 1)": lambda x: np.cumprod(x % 2 + 1),
    "simd_prefix_exclusive_product(x % 2 + 1)": lambda x: np.cumprod(np.r_[1, (x % 2 + 1)[:-1]]),
    "(uint)(ulong)simd_ballot(x % 3 == 0)": lambda x: ((x % 3 == 0).astype(np.int64) << LANE).sum(),
    "(uint)(ulong)simd_active_threads_mask()": lambda x: 0xFFFFFFFF,
    "simd_all(x < 200) + 2 * simd_all(x < 50) + 4 * simd_any(x == 0) + 8 * simd_any(x > 200)": lambda x: (
        1 + 2 * (x < 50).all() + 4 * (x == 0).any()),
    "simd_is_first()": lambda x: LANE == 0,
    "quad_sum(x)": lambda x: x.reshape(8, 4).sum(1).repeat(4),
    "quad_product(x % 3 + 1)": lambda x: (x % 3 + 1).reshape(8, 4).prod(1).repeat(4),
    "quad_min(x)": lambda x: x.reshape(8, 4).min(1).repeat(4),
    "quad_max(x)": lambda x: x.reshape(8, 4).max(1).repeat(4),
    "quad_and(x)": lambda x: np.bitwise_and.reduce(x.reshape(8, 4), 1).repeat(4),
    "quad_or(x)": lambda x: np.bitwise_or.reduce(x.reshape(8, 4), 1).repeat(4),
    "quad_xor(x)": lambda x: np.bitwise_xor.reduce(x.reshape(8, 4), 1).repeat(4),
    "quad_broadcast(x, 2)": lambda x: x[QUAD + 2],
    "quad_shuffle(x, (lane + 1) % 4)": lambda x: x[QUAD + (LANE + 1) % 4],
    "quad_shuffle_xor(x, 3)": lambda x: x[LANE ^ 3],
    "quad_shuffle_up(x, 1)": lambda x: np.where(LANE % 4 >= 1, x[LANE - 1], x),
    "quad_shuffle_down(x, 2)": lambda x: np.where(LANE % 4 < 2, x[(LANE + 2) % 32], x),
    "quad_all(x % 2 == 0) + 2 * quad_any(x % 2 == 0)": lambda x: (
        (x % 2 == 0).reshape(8, 4).all(1) + 2 * (x % 2 == 0).reshape(8, 4).any(1)).repeat(4),
}  # fmt: skip


def test_simdgroup_and_quadgroup_functions(checked):
    x = np.random.default_rng(3).integers(0, 100, 64).astype(np.uint32)
    stores = "".join(f"o[{k} * 64 + t] = {expression};\n" for k, expression in enumerate(LANES))
    # the other spelling of a kernel
    library = metalsim.compile(
        f"{HEADER}[[kernel]] void k(device const uint* in, device uint* o, uint t [[thread_position_in_grid]],\n"
        f"uint lane [[thread_index_in_simdgroup]]) {{ uint x = in[t];\n{stores} }}\n"
    )
    for order in ("fifo", "random"):
        out = np.zeros((len(LANES), 64), np.uint32)
        library.kernel("k").dispatch(grid=64, threadgroup=64, buffers=[x, out], checked=checked, order=order)
        for row, (expression, function) in zip(out, LANES.items(), strict=True):
            want = [np.broadcast_to(function(x[g : g + 32].astype(np.int64)), 32) for g in (0, 32)]
            assert np.array_equal(row, np.concatenate(want).astype(np.uint32)), expression


def test_simdgroup_functions_of_half_and_vectors(checked):
    x = np.random.default_rng(4).integers(-8, 8, (32, 4)).astype(np.float16)
    kernel = metalsim.compile(
        f"{HEADER}kernel void k(device const half4* in, device half4* o, {INDEX}) {{\n"
        "o[i] = simd_sum(in[i]); o[32 + i] = simd_shuffle_xor(in[i], 1); o[64 + i] = half4(simd_max(in[i].x)); }\n"
    ).kernel("k")
    out = np.zeros((3, 32, 4), np.float16)
    kernel.dispatch(grid=32, threadgroup=32, buffers=[x, out], checked=checked)
    assert np.array_equal(out[0], np.tile(x.sum(0), (32, 1))) and np.array_equal(out[1], x[LANE ^ 1])
    assert (out[2] == x[:, 0].max()).all()


# ---- atomics

ATOMICS = {
    "fetch_add": np.add, "fetch_sub": np.subtract, "fetch_min": np.minimum, "fetch_max": np.maximum,
    "fetch_and": np.bitwise_and, "fetch_or": np.bitwise_or, "fetch_xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["int", "uint", "ulong"])
def test_atomics(checked, kind):
    dtype = INTEGERS[kind]
    statements = "".join(
        f"atomic_{name}_explicit(&o[{n}], x[i], memory_order_relaxed);" for n, name in enumerate(ATOMICS)
    )
    kernel = metalsim.compile(
        f"{HEADER}kernel void k(device atomic<{kind}>* o, device const {kind}* x, device {kind}* seen, {INDEX}) {{\n"
        f"{statements} seen[i] = atomic_exchange_explicit(&o[7], x[i], memory_order_relaxed);\n"
        f"{kind} e = 5; while (!atomic_compare_exchange_weak_explicit(&o[8], &e, {kind}(e * 3 + x[i]),\n"
        "memory_order_relaxed, memory_order_relaxed)) {}\n"
        "if (i == 0) atomic_store_explicit(&o[9], 77, memory_order_relaxed); }\n"
    ).kernel("k")
    x = np.random.default_rng(5).integers(1, 1000, 96).astype(dtype)
    start = np.array([9, 9, 900, 9, 0xFFFF, 9, 9, 4, 5, 0], dtype)
    out, seen = start.copy(), np.zeros(96, dtype)
    kernel.dispatch(grid=96, threadgroup=32, buffers=[out, x, seen], checked=checked, order="fifo", workers=1)
    for n, function in enumerate(ATOMICS.values()):
        assert out[n] == function.reduce(np.r_[start[n], x]), list(ATOMICS)[n]
    # every value is swapped in once and out once
    assert sorted([*seen, out[7]]) == sorted([4, *x])
    chained = 5
    for value in x.tolist():
        chained = chained * 3 + value
    assert int(out[8]) % 2**32 == chained % 2**32 and out[9] == 77


@pytest.mark.parametrize("header", ["vector", "cmath", "math.h", "stdint.h", "metal_cmath"])
def test_other_headers_are_refused(header):
    with pytest.raises(metalsim.CompileError, match=f"<source>:3:.*'{header}' file not found"):
        metalsim.compile(f"{HEADER}#include <{header}>\n")
