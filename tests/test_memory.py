"""No operator makes an unpacked copy of a whole weight: the extra memory is a panel of it, whatever its size."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch, torch_qmm
from pathlib import Path
from torch_qmm import Format
from torch_qmm.bench.weights import random_weight

def status(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) << 10

N, K = map(int, sys.argv[3].split("x"))
weight = random_weight(Format.Q4_0, N, K)
small = random_weight(Format.Q4_0, 64, K)
dtype = getattr(torch, sys.argv[2])
calls = {
    "mul_mv": lambda w: torch_qmm.mul_mv(torch.ones(3, K, dtype=dtype), w),
    "mul_mm": lambda w: torch_qmm.mul_mm(torch.ones(100, K, dtype=dtype), w),
    "linear": lambda w: torch_qmm.linear(torch.ones(100, K, dtype=dtype), w),
    "mul_mm_t": lambda w: torch.ops.qmm.mul_mm_t(torch.ones(100, len(w), dtype=dtype), w.data, int(w.format)),
    "embedding": lambda w: torch_qmm.embedding(torch.arange(64), w, dtype=dtype),
}
call = calls[sys.argv[1]]
call(small)  # the libraries' own buffers
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = status("VmRSS")
call(weight)
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ["mul_mv", "mul_mm", "linear", "mul_mm_t", "embedding"])
def test_extra_memory_is_bounded(op, dtype):
    # unpacked the weight takes 256 MiB in float32 and 128 MiB in bfloat16; a thread's panel takes 2 MiB, x and y 6 MiB
    assert_extra_memory_under(32 << 20, op, dtype, "8192x8192")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize("op", ["mul_mm", "mul_mm_t"])
def test_extra_memory_is_bounded_for_long_rows(op):
    # x or its gradient takes 100 MiB and is there in both; unpacked the weight takes 256 MiB, a thread's panel 8 MiB
    assert_extra_memory_under(100 + 100 + 48 << 20, op, "float32", "256x262144")


def assert_extra_memory_under(limit, *arguments):
    run = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    extra = int(run.stdout)
    assert extra < limit, f"{extra / 2**20:.1f} MiB"
