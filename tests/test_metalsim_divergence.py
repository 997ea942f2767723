"""Lanes of a simdgroup that part and meet again: metalsim against a model with an execution mask, and by hand."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import missing

from tests import metalsim
from tests.simt import Generator, Program

ORDERS = ["fifo", "lifo", "random"]
HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
# A lambda makes the source pass count the passes of every loop, so most programs do without.
FORMS = [("plain", "template"), ("method", "plain"), ("plain", "lambda")]


@pytest.fixture(autouse=True)
def _clang():
    if not metalsim.available():
        missing("clang-19 is not installed")


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def checked(request: pytest.FixtureRequest) -> bool:
    return request.param


def programs(forms: tuple[str, ...]) -> list[Program]:
    first = 100 * FORMS.index(forms)
    return [Generator(number).program(forms) for number in range(first, first + 12)]


@pytest.mark.parametrize("forms", FORMS, ids="-".join)
def test_random_programs_agree_with_the_model(checked, forms):
    chosen = programs(forms)
    library = metalsim.compile(HEADER + "".join(p.text() for p in chosen))
    threads = 84  # the last simdgroup has 20 lanes
    for program in chosen:
        want = program.run(threads)
        for order in ORDERS:
            out = np.zeros(threads, np.uint32)
            library.kernel(f"k{program.number}").dispatch(
                grid=threads, threadgroup=threads, buffers=[out], checked=checked, order=order
            )
            assert np.array_equal(out, want), f"{order}\n{program.text()}"


LANE = np.arange(32)
FUNCTIONS = """
static uint half_of(uint lane, uint odd) { return lane % 2 == odd ? simd_sum(1u) : 0u; }
static uint early(uint lane, uint x) { if (lane < 10) return x; return x + simd_sum(1u); }
template <typename F> uint apply(uint n, F f) { uint s = 0; for (uint i = 0; i < n; i++) s += f(i); return s; }
struct Count { uint scale; uint operator()(uint x) const { return scale * simd_sum(x); } };
struct Made { uint n; Made(uint lane) { n = 0; if (lane < 7) n = simd_sum(1u); } };
#define COUNT_IF(c) if (c) x += simd_sum(1u)
"""
# What each lane must have in x afterwards.
CASES = {
    "branch, then all": ("if (lane < 5) x = simd_sum(1u); x += 100 * simd_sum(1u);", np.where(LANE < 5, 3205, 3200)),
    "both sides": ("if (lane % 4) x = simd_sum(1u); else x = simd_max(lane);", np.where(LANE % 4, 24, 28)),
    "continue": ("for (uint i = 0; i < 4; i++) { if ((lane + i) % 2) continue; x += simd_sum(1u); }", 32 + 0 * LANE),
    "trip count": ("for (uint i = 0; i < lane % 4; i++) x += simd_sum(1u);", np.array([0, 24, 40, 48])[LANE % 4]),
    "break": (
        "for (uint i = 0; i < 3; i++) { if (lane < 8 * i) break; x += simd_sum(1u); } x = 100 * x + simd_sum(1u);",
        np.select([LANE < 8, LANE < 16], [3200, 5600], 7200) + 32,
    ),
    "while over an operation": (
        "uint n = lane; while (simd_max(n) > 20 && n > 0) { n -= 1; x += simd_sum(1u); }",
        None,
    ),
    "step": ("for (uint i = 0; i < 40; i += simd_sum(1u)) { if (lane < 16 && i) break; x += i + 1; }", None),
    "range": (
        "uint a[3] = {0, 1, 2}; for (uint bound : a) if (lane % 3 >= bound) x += simd_sum(1u);",
        None,
    ),
    "helper from two places": ("x = half_of(lane, 0) + 100 * half_of(lane, 1);", np.where(LANE % 2, 1600, 16)),
    "helper in an argument": ("x = early(lane, early(lane, simd_sum(1u)));", np.where(LANE < 10, 32, 32 + 44)),
    "operation under a condition in an argument": (
        "x = simd_sum(lane < 3 ? simd_sum(1u) : 1u);",
        9 + 29 + 0 * LANE,
    ),
    "on the left of an assignment": (
        "uint a[64] = {}; a[lane < 4 ? simd_sum(1u) : 1] = lane < 8 ? simd_sum(10u) : 0u; x = a[4] + a[1];",
        np.where(LANE < 8, 80, 0),
    ),
    "lambda in a template": (
        "x = apply(lane % 3, [&](uint i) { return simd_sum(i + 1); });",
        np.array([0, 21, 21 + 20])[LANE % 3],
    ),
    "function object": ("Count c{2}; for (uint i = 0; i < lane % 2 + 1; i++) x += c(1);", np.where(LANE % 2, 96, 64)),
    "constructor": (
        "Made a(lane), b(31 - lane); x = a.n + 100 * b.n;",
        np.where(LANE < 7, 7, np.where(LANE > 24, 700, 0)),
    ),
    "macro twice in a line": ("COUNT_IF(lane < 4); COUNT_IF(lane < 6);", np.select([LANE < 4, LANE < 6], [10, 6], 0)),
    "unrolled": (
        '_Pragma("unroll")\nfor (uint i = 0; i < 4; i++) { if (lane % 4 <= i) x += simd_sum(1u); }',
        np.array([8 + 16 + 24 + 32, 16 + 24 + 32, 24 + 32, 32])[LANE % 4],
    ),
    "fallthrough": (
        "switch (lane % 4) { case 0: x += simd_sum(1u); case 1: x += 100 * simd_sum(1u); break; "
        "default: x += simd_sum(10000u); }",
        np.array([8 + 1600, 1600, 160000, 160000])[LANE % 4],
    ),
    "continue out of a switch": (
        "for (uint i = 0; i < 3; i++) { switch (lane % 3) { case 0: if (i == 1) continue; break; "
        "case 1: x += simd_sum(1u); } x += 100 * simd_sum(1u); }",
        np.array([6400, 8500 + 33, 8500])[LANE % 3],
    ),
    "early return": ("if (lane % 2) { out[t] = simd_sum(3u); return; } x = simd_sum(1u);", np.where(LANE % 2, 48, 16)),
    "short circuit": (
        "if (lane < 20 && simd_sum(1u) == 20 && lane < 10 && simd_sum(1u) == 10) x = simd_sum(1u);",
        np.where(LANE < 10, 10, 0),
    ),
    "nested loops": (
        "for (uint i = 0; i < 2; i++) for (uint j = 0; j < lane % 2 + i; j++) x += simd_sum(1u);",
        np.where(LANE % 2, 16 + 32 + 16, 32),
    ),
    "votes of the active lanes": (
        "if (lane % 2) { x = simd_all(lane > 0) + 2 * simd_any(lane == 2) + 4 * simd_is_first() + "
        "8 * popcount((uint)(ulong)simd_active_threads_mask()); }",
        np.where(LANE % 2, 1 + 4 * (LANE == 1) + 8 * 16, 0),
    ),
}


def while_over_an_operation() -> np.ndarray:
    n, x, inside = LANE.copy(), 0 * LANE, np.ones(32, bool)
    while inside.any():
        inside = inside & (n[inside].max() > 20) & (n > 0)
        n = n - inside
        x = x + inside * inside.sum()
    return x


def step() -> np.ndarray:
    # lanes below 16 break in the second pass, before the step; 16 lanes step from 32 to 48
    return np.where(LANE < 16, 1, 1 + 33)


EXPECTED = {
    "while over an operation": while_over_an_operation(),
    "step": step(),
    "range": sum(np.where(a <= LANE % 3, (a <= LANE % 3).sum(), 0) for a in range(3)),
}


@pytest.fixture(scope="module")
def cases() -> metalsim.Library:
    parameters = "device uint* out, uint lane [[thread_index_in_simdgroup]], uint t [[thread_position_in_grid]]"
    kernels = "".join(
        f"kernel void k{i}({parameters}) {{ uint x = 0; {body} out[t] = x; }}\n"
        for i, (body, _) in enumerate(CASES.values())
    )
    return metalsim.compile(HEADER + FUNCTIONS + kernels)


@pytest.mark.parametrize("name", CASES)
def test_lanes_part_and_meet_again(cases, checked, name):
    want = EXPECTED.get(name, CASES[name][1])
    for order in ORDERS:
        out = np.zeros(64, np.uint32)
        kernel = cases.kernel(f"k{list(CASES).index(name)}")
        kernel.dispatch(grid=64, threadgroup=64, buffers=[out], checked=checked, order=order)
        assert np.array_equal(out, np.tile(want, 2)), order


@pytest.mark.parametrize(
    "function",
    [
        "__attribute__((noinline)) uint f(uint x) { return simd_sum(x); }",
        "uint f(uint x) { return x == 0 ? 1u : f(x - 1) + simd_sum(x); }",
    ],
)
def test_operation_in_a_function_that_is_not_inlined_is_refused(function):
    kernel = "kernel void k(device uint* o, uint t [[thread_position_in_grid]]) { o[t] = f(t) + f(t + 1); }"
    with pytest.raises(metalsim.CompileError, match=r"<source>: 'f\(unsigned int\)' holds simdgroup operations"):
        metalsim.compile(f"{HEADER}{function}\n{kernel}\n")


@pytest.mark.parametrize(
    "function, what",
    [
        ("template <typename... A> uint f(A... a) { return (0u + ... + simd_sum(a)); }", "a pack expansion"),
        ("uint g(uint x) { return simd_sum(x); } template <typename... A> uint f(A... a) { uint v[] = {g(a)...}; "
         "return v[0]; }", "a pack expansion"),
        ("uint f(uint x, uint y = simd_sum(1u)) { return x + y; }", "'simd_sum' in a default argument"),
        ("struct S { uint x = simd_sum(1u); };", "'simd_sum' in a default argument or a member's initial value"),
        ("void f() { while (uint x = simd_sum(1u)) {} }", "a declaration as the condition of a loop"),
    ],
)  # fmt: skip
def test_one_place_for_several_calls_is_refused(function, what):
    with pytest.raises(metalsim.SourceError, match=f"^<source>:3: {what}"):
        metalsim.compile(f"{HEADER}{function}\nkernel void k(device uint* o) {{ o[0] = 1; }}\n")


def test_lanes_beyond_the_columns_that_debug_information_keeps_are_reported():
    filler = " ".join(["x += 1;"] * 10000)
    body = f"uint x = 0; {filler} if (t % 2) x += simd_sum(1u); else x += simd_max(t); o[t] = x;"
    parameters = "device uint* o, uint t [[thread_position_in_grid]]"
    kernel = metalsim.compile(f"{HEADER}kernel void k({parameters}) {{ {body} }}\n").kernel("k")
    with pytest.raises(metalsim.Fault, match="less than 65536 columns"):
        kernel.dispatch(grid=32, threadgroup=32, buffers=[np.zeros(32, np.uint32)], checked=False)


def test_without_a_symbolizer_lanes_that_parted_are_reported(monkeypatch):
    body = "if (t % 2) o[t] = simd_sum(1u); else o[t] = simd_max(t);"
    kernel = metalsim.compile(
        f"{HEADER}kernel void k(device uint* o, uint t [[thread_position_in_grid]]) {{\n{body} }}\n"
    ).kernel("k")
    kernel.library.image(checked=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(metalsim.Fault, match="cannot be put in order: that needs llvm-symbolizer"):
        kernel.dispatch(grid=32, threadgroup=32, buffers=[np.zeros(32, np.uint32)], checked=False)


@pytest.mark.parametrize("compiler, runner", [("clang++-19", []), ("aarch64-linux-gnu-g++", ["qemu-aarch64"])])
def test_fiber_switch_keeps_registers(tmp_path, compiler, runner):
    for tool in (compiler, *runner):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    engine = Path(metalsim.__file__).parent / "engine"
    sources = [engine / "switch.cpp", Path(__file__).parent / "fiber_switch.cpp"]
    program = tmp_path / "fiber_switch"
    subprocess.run([compiler, "-O2", "-static", f"-I{engine}", *sources, "-o", program], check=True)
    done = subprocess.run([*runner, program], capture_output=True, text=True, check=True)
    scale = 1.001**1000
    want = sum(6 * i + int(0.75 * i) for i in range(1000))
    assert done.stdout == f"{want} {9 * scale:.3f}\n"
