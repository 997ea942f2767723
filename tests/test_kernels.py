"""The CPU kernels without torch, behind guard pages and canaries: natively, and for Arm under an emulator."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CACHE, ROOT, missing
from reference import FORMATS, dequantize, magnitude64, product64

from torch_qmm.bench.weights import random_weight

CPU = ROOT / "csrc" / "cpu"
# The mutants build it many times over, without optimisation.
OPTIMISE = os.environ.get("QMM_KERNEL_CHECK_OPTIMISE", "-O2")
FLAGS = ["-std=c++20", OPTIMISE, "-ffp-contract=off", "-pthread"]


def build(compiler: str, extra: list[str]) -> Path:
    """The checker, compiled with the kernels; cached by the content of every source."""
    sources = [ROOT / "tests" / "kernel_check.cpp", *sorted(CPU.glob("kernels*.cpp"))]
    headers = [*CPU.rglob("*.h"), ROOT / "csrc" / "formats.h", ROOT / "csrc" / "generate_grids.py"]
    digest = hashlib.sha256(" ".join([compiler, *FLAGS, *extra]).encode())
    for path in sorted([*sources, *headers]):
        digest.update(path.name.encode() + path.read_bytes())
    target = CACHE / "kernel_check" / digest.hexdigest()[:16] / "kernel_check"
    if not target.exists():
        folder = target.parent
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, ROOT / "csrc" / "generate_grids.py", folder / "qmm_iq_grids.h"], check=True)

        def compile_one(source: Path) -> Path:
            compiled = folder / f"{source.stem}.o"
            subprocess.run([compiler, *FLAGS, f"-I{folder}", "-c", source, "-o", compiled], check=True)
            return compiled

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sources))
        subprocess.run([compiler, *FLAGS, *extra, *objects, "-o", target], check=True)
    return target


@pytest.fixture(scope="session")
def cases(tmp_path_factory) -> list[Path]:
    """One file a format and shape: see kernel_check.cpp."""
    folder = tmp_path_factory.mktemp("cases")
    files = []
    for fmt in FORMATS:
        plain_ks = [1, 7, 16, 19, 40]
        for i, (rows, tokens) in enumerate([(1, 1), (3, 2), (5, 5), (9, 8), (2, 19)]):
            K = plain_ks[i] if fmt.block_weights == 1 else fmt.block_weights * (i + 1)
            weight, x = random_weight(fmt, rows, K, seed=i), torch.randn(tokens, K)
            path = folder / f"{fmt.name}_{rows}x{K}x{tokens}"
            parts = [
                np.array([int(fmt), rows, tokens, K]),
                weight.data.numpy(),
                x.numpy(),
                dequantize(weight),
                product64(x, weight).numpy(),
                magnitude64(x, weight).numpy(),
            ]
            path.write_bytes(b"".join(part.tobytes() for part in parts))
            files.append(path)
    return files


def check(command: list, cases: list[Path], isas: set[str]) -> None:
    run = subprocess.run([*command, *cases], capture_output=True, text=True)
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}{run.stderr}"
    assert {line.split()[1] for line in run.stdout.splitlines() if line.startswith("isa ")} >= isas


def test_native_kernels_stay_inside_their_arrays(cases):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    check([build(compiler, [])], cases, {"generic"})


def test_arm_kernels(cases):
    """NEON, as on Apple's processors: executed natively on an Arm machine, by an emulator on a PC."""
    if platform.machine() in ("arm64", "aarch64"):
        check([build("c++", [])], cases, {"neon", "generic"})
        return
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not compiler or not emulator:
        missing("g++-aarch64-linux-gnu and qemu-user, which run the Arm kernels here, are not installed")
    check([emulator, build(compiler, ["-static"])], cases, {"neon", "generic"})
