"""What metalsim costs: `python -m tests.metalsim.benchmark` prints a table of times against their limits."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import build
from .library import Library, compile

TILED = Path(__file__).parent / "shaders" / "tiled.metal"
M, N, K = 64, 576, 576


def best(action: Callable[[], object], repeats: int = 5) -> float:
    """The shortest time in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def fiber_switch() -> float:
    """Seconds a switch: threads that meet at barriers and do nothing else."""
    library = compile(
        "#include <metal_stdlib>\nusing namespace metal;\nkernel void k(constant uint& n) {\n"
        "for (uint i = 0; i < n; i++) threadgroup_barrier(mem_flags::mem_none); }\n"
    )
    kernel, switches = library.kernel("k"), 0

    def run(passes: int) -> None:
        nonlocal switches
        options = {"checked": False, "order": "fifo", "workers": 1}
        counters = kernel.dispatch(groups=1, threadgroup=128, bytes={0: np.uint32(passes)}, **options)
        switches = counters.fiber_switches

    run(1)
    return best(lambda: run(20000)) / switches


def tiled(library: Library, checked: bool, workers: int | None = None) -> float:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((N, K)).astype(np.float16)
    out = np.zeros((M, N), np.float32)
    kernel = library.kernel("tiled")

    def run() -> None:
        kernel.dispatch(
            groups=(N // 32, M // 32), threadgroup=128, buffers=[a, b, out],
            bytes={3: np.array([M, N, K], np.uint32)}, threadgroup_memory=[4096], checked=checked, workers=workers,
        )  # fmt: skip

    run()
    seconds = best(run, 1 if checked else 5)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-3, atol=1e-3)
    return seconds


def builds() -> tuple[float, float]:
    """A shader of eight kernels: built anew, and found in the cache."""
    text = TILED.read_text()
    start = text.index("// C[m")
    source = text[:start] + "".join(text[start:].replace("void tiled(", f"void tiled{i}(") for i in range(8))
    kept = build.CACHE
    with tempfile.TemporaryDirectory() as folder:
        build.CACHE = Path(folder)
        try:
            cold = best(lambda: compile(source), 1)
            cached = best(lambda: compile(source), 3)
        finally:
            build.CACHE = kept
    return cold, cached


def main() -> None:
    library = compile(TILED)
    one, all_ = tiled(library, False, workers=1), tiled(library, False)
    checked = tiled(library, True)
    cold, cached = builds()
    product = f"half product of {M} x {N} x {K} in tiles"
    rows = [
        ("a fiber switch", f"{fiber_switch() * 1e9:.1f} ns", "30 ns"),
        (f"{product}, unchecked, 1 worker", f"{one * 1e3:.1f} ms", ""),
        (f"{product}, unchecked, {os.cpu_count()} workers", f"{all_ * 1e3:.1f} ms", "30 ms"),
        (f"{product}, checked", f"{checked / all_:.1f} times unchecked", "60 times"),
        ("building 8 kernels, cold", f"{cold:.2f} s", "10 s"),
        ("building 8 kernels, cached", f"{cached * 1e3:.0f} ms", "100 ms"),
    ]
    for name, value, limit in rows:
        print(f"{name:60} {value:>22} {limit and 'below ' + limit:>16}")


if __name__ == "__main__":
    main()
