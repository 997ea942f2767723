"""Every counter of a dispatch, exactly."""

import numpy as np
import pytest
from conftest import missing

from tests import metalsim

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"

# y[row] = sum over n units of 8 weights. `plain` gives a simdgroup one row and its lanes the units; `split` gives it as
# many rows as there is room for. `staged` is `plain` with x brought to threadgroup memory by all lanes.
ROWS = """
kernel void plain(device const float* w, device const float* x, device float* y, constant uint& n,
                  uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    float sum = 0;
    for (uint unit = lane; unit < n; unit += 32)
        for (uint i = 0; i < 8; i++) sum += w[(row * n + unit) * 8 + i] * x[unit * 8 + i];
    sum = simd_sum(sum);
    if (lane == 0) y[row] = sum;
}
kernel void split(device const float* w, device const float* x, device float* y, constant uint& n,
                  uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint rows = 32 / n, row = group * rows + lane / n, unit = lane % n;
    float sum = 0;
    for (uint i = 0; i < 8; i++) sum += w[(row * n + unit) * 8 + i] * x[unit * 8 + i];
    for (ushort step = n / 2; step > 0; step /= 2) sum += simd_shuffle_xor(sum, step);
    if (unit == 0) y[row] = sum;
}
kernel void staged(device const float* w, device const float* x, device float* y, constant uint& n,
                   uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float kept[256];
    for (uint i = lane; i < n * 8; i += 32) kept[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0;
    for (uint round = 0; round < 2; round++)
        for (uint unit = lane; unit < n; unit += 32)
            for (uint i = 0; i < 8; i++) sum += w[(row * n + unit) * 8 + i] * kept[unit * 8 + i];
    sum = simd_sum(sum) / 2;
    if (lane == 0) y[row] = sum;
}
"""


@pytest.fixture(autouse=True)
def _clang():
    if not metalsim.available():
        missing("clang-19 is not installed")


def run_rows(name: str, rows: int, units: int) -> metalsim.Counters:
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((rows, units * 8), np.float32), rng.standard_normal(units * 8, np.float32)
    y = np.zeros(rows, np.float32)
    groups = rows * units // 32 if name == "split" else rows
    counters = (
        metalsim.compile(HEADER + ROWS)
        .kernel(name)
        .dispatch(groups=groups, threadgroup=32, buffers=[w, x, y], bytes={3: np.uint32(units)})
    )
    np.testing.assert_allclose(y, w @ x, rtol=1e-4, atol=1e-5)
    return counters


@pytest.mark.parametrize("units", [4, 8, 16, 32])
def test_idle_lanes_of_a_row_split(units):
    assert run_rows("plain", 8, units).idle_lanes == 8 * (32 - units)
    assert run_rows("staged", 8, units).idle_lanes == 8 * (32 - units)
    assert run_rows("split", 8, units).idle_lanes == 0


def test_bytes_of_a_row_product():
    counters = run_rows("plain", 6, 8)
    w, x, y, n = counters.buffers
    assert (w.read_issued, w.read_distinct, w.written_issued, w.written_distinct) == (6 * 256, 6 * 256, 0, 0)
    assert (x.read_issued, x.read_distinct) == (6 * 256, 256)
    assert (y.read_issued, y.written_issued, y.written_distinct) == (0, 24, 24)
    assert (n.read_distinct, n.written_issued) == (4, 0)
    assert (counters.threads, counters.threadgroups, counters.simd_operations) == (192, 6, 6)
    assert (counters.inactive_lanes, counters.barriers, counters.multiply_accumulates) == (0, 0, 0)


BODY = """
kernel void k(device uint* o, uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    for (uint i = 0; i < 3; i++) threadgroup_barrier(mem_flags::mem_device);
    if (lane < 10) o[t] = simd_sum(1u);
    for (uint i = 0; i < lane % 2; i++) o[t] += quad_sum(1u);
    simdgroup_float8x8 m(1.0f);
    for (uint i = 0; i < 5; i++) simdgroup_multiply_accumulate(m, m, m, m);
    if (m.thread_elements()[0] > 1e9f) o[t] = 0;
    atomic_fetch_add_explicit((device atomic_uint*)o + 96, 1u, memory_order_relaxed);
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_operations_barriers_and_lanes(checked):
    out = np.zeros(97, np.uint32)
    kernel = metalsim.compile(HEADER + BODY).kernel("k")
    counters = kernel.dispatch(groups=1, threadgroup=96, buffers=[out], checked=checked)
    assert (counters.threads, counters.threadgroups, counters.barriers) == (96, 1, 3)
    assert counters.multiply_accumulates == 3 * 5
    # the sum, the quads' sum, and one exchange of elements for each product but the first
    assert counters.simd_operations == 3 * (2 + 4)
    assert counters.inactive_lanes == 3 * (22 + 16)
    assert counters.fiber_switches > 96
    if checked:
        # lanes below 10 write; odd lanes read and write; an atomic update reads and writes
        buffer = counters.buffers[0]
        assert buffer.written_issued == 4 * (3 * (10 + 16) + 96) and buffer.read_issued == 4 * (3 * 16 + 96)
        assert buffer.written_distinct == 4 * (3 * (10 + 11) + 1) and buffer.read_distinct == 4 * (3 * 16 + 1)
    else:
        assert counters.buffers[0] == metalsim.BufferTraffic() and counters.idle_lanes == 0
