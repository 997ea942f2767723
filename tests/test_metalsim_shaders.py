"""Shaders on metalsim against numpy and torch, in the fast and the checked build."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import missing

from tests import metalsim

SHADERS = Path(metalsim.__file__).parent / "shaders"


def library(name: str) -> metalsim.Library:
    if not metalsim.available():
        missing("clang-19 is not installed")
    return metalsim.compile(SHADERS / name)


@pytest.fixture(scope="module")
def language() -> metalsim.Library:
    return library("language.metal")


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def checked(request: pytest.FixtureRequest) -> bool:
    return request.param


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def bfloat(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).to(torch.bfloat16)


def test_swizzles(language, checked):
    a, out = floats(16, 4), np.zeros((16, 2, 4), np.float32)
    language.kernel("swizzles").dispatch(grid=16, threadgroup=16, buffers=[a, out], checked=checked)
    x, y, z, w = a[:, 3], a[:, 2] * 3, a[:, 2] / 2, a[:, 3] + 2
    assert np.array_equal(out[:, 0], np.stack([z, y, x, w], 1))
    assert np.array_equal(out[:, 1], np.stack([x, w, z, y], 1))


def test_packed_vectors(language, checked):
    a, out = floats(10, 3), np.zeros((10, 3), np.float16)
    language.kernel("packed").dispatch(grid=10, threadgroup=4, buffers=[a, out], checked=checked)
    assert np.array_equal(out, (a * a[:, :1]).astype(np.float16))


def test_matrices(language, checked):
    m, x, out = floats(6, 2, 4), floats(6, 4), np.zeros((6, 2), np.float32)
    language.kernel("matrices").dispatch(grid=6, threadgroup=6, buffers=[m, x, out], checked=checked)
    np.testing.assert_allclose(out, np.einsum("nij,nj->ni", m[:, :, :3], x[:, :3]), rtol=1e-5, atol=1e-6)


def test_half_rounds_after_every_operation(language, checked):
    a, b = floats(64).astype(np.float16), floats(64)[::-1].astype(np.float16)
    out = np.zeros(64, np.float16)
    language.kernel("halves").dispatch(grid=64, threadgroup=32, buffers=[a, b, out], checked=checked)
    # contraction into one fused multiply-add is allowed, as it is in Metal
    exact = a.astype(np.float64) * b.astype(np.float64) + np.float64(np.float16(0.1))
    assert np.all((out == a * b + np.float16(0.1)) | (out == exact.astype(np.float16)))


def test_bfloat(language, checked):
    a, out = floats(64), np.zeros(64, np.uint16)
    language.kernel("bfloats").dispatch(grid=64, threadgroup=32, buffers=[a, out], checked=checked)
    x = bfloat(a)
    want = x * x + torch.tensor(0.1, dtype=torch.bfloat16)
    fused = (x.double() * x.double() + torch.tensor(0.1, dtype=torch.bfloat16).double()).float().to(torch.bfloat16)
    got = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
    assert bool(((got == want) | (got == fused)).all())


def test_integers(language, checked):
    a = np.array([0, 1, -1, 5, 1 << 30, -(1 << 31), 0x12345678, -77], np.int32)
    out = np.zeros((8, 4), np.int32)
    language.kernel("integers").dispatch(grid=8, threadgroup=8, buffers=[a, out], checked=checked)
    for x, got in zip(a.tolist(), out.tolist(), strict=True):
        bits = x & 0xFFFFFFFF
        low = bits & -bits
        field = (x >> 4) & 0x1FF
        rotated = ((bits << 5) | (bits >> 27)) & 0xFFFFFFFF
        last = ((field - 512 if field & 256 else field) ^ rotated) & 0xFFFFFFFF
        first = bin(bits).count("1") + ((x << 20) >> 32) + abs(min(x, 3))
        want = [first, 32 - bits.bit_length(), low.bit_length() - 1 if bits else 32, last]
        assert [v & 0xFFFFFFFF for v in got] == [v & 0xFFFFFFFF for v in want]


def test_simdgroup_functions(language, checked):
    x = np.random.default_rng(1).integers(-50, 50, 64).astype(np.int32)
    out = np.zeros((16, 64), np.int32)
    counters = language.kernel("lanes").dispatch(grid=64, threadgroup=64, buffers=[x, out], checked=checked)
    assert counters.simd_operations == 17 * 2 and counters.inactive_lanes == 0
    i = np.arange(32)
    for group in (0, 1):
        v, got = x[32 * group :][:32].astype(np.int64), out[:, 32 * group :][:, :32]
        quad = v.reshape(8, 4)
        want = [v.sum(), v.max(), v.min(), v[31 - i], v[i ^ 5], np.where(i + 3 < 32, v[(i + 3) % 32], v)]
        want += [np.where(i >= 3, v[i - 3], v), v[7], ((v > 0) << i).sum(), v.cumsum(), v.cumsum() - v]
        want += [quad.sum(1).repeat(4), quad[:, 2].repeat(4), np.bitwise_xor.reduce(v), v[(i + 9) % 32]]
        want += [int((v == 3).any()) + 2]
        for row, expected in zip(got, want, strict=True):
            assert np.array_equal(row, np.broadcast_to(expected, 32).astype(np.int32))


def test_only_active_lanes_take_part(language, checked):
    out = np.zeros((64, 2), np.int32)
    for order in ("fifo", "lifo", "random"):
        kernel = language.kernel("divergence")
        counters = kernel.dispatch(grid=64, threadgroup=64, buffers=[out], checked=checked, order=order)
        lane = np.arange(64) % 32
        assert np.array_equal(out[:, 0], np.where(lane < 5, 5, 1))
        assert np.array_equal(out[:, 1], np.where(lane % 2, 0, 16))
        assert counters.inactive_lanes == 2 * (27 + 16)


def test_positions_with_smaller_groups_at_the_edge(language, checked):
    grid, group = (10, 5, 2), (4, 3, 1)
    out = np.zeros((*grid[::-1], 12), np.uint32)
    language.kernel("positions").dispatch(grid=grid, threadgroup=group, buffers=[out], checked=checked)
    z, y, x = np.meshgrid(*[np.arange(n) for n in grid[::-1]], indexing="ij")
    width = np.minimum(4, 10 - x // 4 * 4)
    height = np.minimum(3, 5 - y // 3 * 3)
    index = x % 4 + width * (y % 3)
    want = [x % 4, y % 3, x // 4, y // 3, z, width, height, 3 + 0 * x, 2 + 0 * x, index, 0 * x, 32 + 0 * x]
    assert np.array_equal(out, np.stack(want, -1))


def test_matrix_lane_layout(language, checked):
    out = np.zeros((8, 8), np.float32)
    language.kernel("matrix_lanes").dispatch(grid=32, threadgroup=32, buffers=[out], checked=checked)
    # Apple's layout, by rows: which lane holds each pair of neighbours
    rows = [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    pairs = np.array(rows + [[lane + 16 for lane in row] for row in rows])
    assert np.array_equal(out[:, ::2], 2 * pairs) and np.array_equal(out[:, 1::2], 2 * pairs + 1)


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_matrix_product(language, checked, kind):
    a, b, out = floats(9, 12), floats(10, 12) + 1, np.zeros((8, 8), np.float32)
    if kind == "bfloat":
        a, b = bfloat(a).float().numpy(), bfloat(b).float().numpy()
        stored = [bfloat(m).view(torch.int16).numpy() for m in (a, b)]
    else:
        stored = [m.astype(np.float16 if kind == "half" else np.float32) for m in (a, b)]
        a, b = (m.astype(np.float32) for m in stored)
    kernel = language.kernel(f"matrix_product_{kind}")
    size = {3: np.uint32(12)}
    counters = kernel.dispatch(grid=32, threadgroup=32, buffers=[*stored, out], bytes=size, checked=checked)
    np.testing.assert_allclose(out.T, 3 * (a[1:9, 3:11] @ b[2:10, :8].T), rtol=1e-5, atol=1e-5)
    assert counters.multiply_accumulates == 2


def test_function_constants(language, checked):
    out, extra = np.zeros(8, np.float32), floats(8)
    i = np.arange(8, dtype=np.float32)

    def run(constants, buffers):
        kernel = language.kernel("constants", constants)
        kernel.dispatch(grid=8, threadgroup=8, buffers=buffers, checked=checked)
        return out.copy()

    assert np.array_equal(run({}, [out]), i + 14)
    assert np.array_equal(run({0: -3}, [out]), i - 6)
    assert np.array_equal(run({"bias": 1, "has_scale": False}, [out]), i + 2)
    np.testing.assert_allclose(run({"has_scale": True, 2: 0.5}, [out, extra]), (i + 14) / 2 + extra, rtol=1e-6)
    with pytest.raises(KeyError, match="no function constant 9"):
        language.kernel("constants", {9: 1})


def test_atomics(language, checked):
    keys = np.random.default_rng(0).integers(0, 16, 256).astype(np.uint32)
    counts, total = np.zeros(17, np.uint32), np.zeros(1, np.float32)
    language.kernel("atomics").dispatch(grid=256, threadgroup=64, buffers=[counts, total, keys], checked=checked)
    assert np.array_equal(counts[:16], np.bincount(keys, minlength=16)) and counts[16] == keys.max()
    assert total[0] == 128


def test_threadgroup_arrays(language, checked):
    a, out = floats(8, 8), np.zeros((8, 8), np.float32)
    language.kernel("transpose_tile").dispatch(grid=(8, 8), threadgroup=(8, 8), buffers=[a, out], checked=checked)
    assert np.array_equal(out, a.T + np.float32(0.25))


def test_math_functions(language, checked):
    a, out = floats(64), np.zeros((16, 64), np.float32)
    language.kernel("functions").dispatch(grid=64, threadgroup=32, buffers=[a, out], checked=checked)
    x = a.astype(np.float64)
    y = np.abs(x) + 0.5
    want = [np.exp(x), np.log(y), 1 / np.sqrt(y), np.tanh(x), np.sin(x), y**x, x.clip(-0.5, 0.5), x * y + 1]
    want += [np.sin(np.pi * x), np.rint(x * 4), np.where(x > 0, 1, -1), 2 * x + 3 * y + 4, np.arctan2(x, y)]
    want += [x - np.floor(x), -x, x + (y - x) / 4]
    np.testing.assert_allclose(out, np.array(want), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("order", ["fifo", "lifo", "random"])
def test_tiled_product(checked, order):
    m, n, k = 64, 96, 64
    a, b, out = floats(m, k).astype(np.float16), floats(n, k).astype(np.float16), np.zeros((m, n), np.float32)
    counters = library("tiled.metal").kernel("tiled").dispatch(
        groups=(n // 32, m // 32), threadgroup=128, buffers=[a, b, out], bytes={3: np.array([m, n, k], np.uint32)},
        threadgroup_memory=[4096], checked=checked, order=order,
    )  # fmt: skip
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-4, atol=1e-4)
    assert counters.multiply_accumulates == m * n * k // 512
    assert counters.barriers == 6 * (2 * k // 32 + 2) and counters.threads == 6 * 128
    if checked:
        assert counters.buffers[0].read_distinct == a.nbytes and counters.buffers[0].read_issued == 3 * a.nbytes
        assert counters.buffers[2].written_issued == counters.buffers[2].written_distinct == out.nbytes


LIMITED = """
[[kernel, max_total_threads_per_threadgroup(32)]] void inside(device int* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }
[[max_total_threads_per_threadgroup(48)]] [[kernel]] void before(device int* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }
kernel [[max_total_threads_per_threadgroup(16 * 4)]] void after(device int* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }
template <int N> [[max_total_threads_per_threadgroup(N * 32)]] kernel void by(device int* x, uint i [[thread_position_in_grid]]) { x[i] = N; }
template [[host_name("by_2")]] kernel void by<2>(device int* x, uint i);
"""  # noqa: E501


@pytest.mark.parametrize("name, most", [("inside", 32), ("before", 48), ("after", 64), ("by_2", 1024)])
def test_threads_of_a_threadgroup_are_limited(name, most):
    kernel = metalsim.compile(LIMITED).kernel(name)
    x = np.zeros(most, np.int32)
    kernel.dispatch(grid=most, threadgroup=most, buffers=[x])
    assert x.all()
    with pytest.raises(ValueError, match=f"more than the kernel's {most} threads"):
        kernel.dispatch(grid=most, threadgroup=most + 1, buffers=[x])
