"""Timing contenders side by side: every round runs all of them, in alternating order, so that noise hits all alike."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_qmm import _C


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contender: one sample a round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the range between the first and third quartile, relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / 2 / self.median


def side_by_side(
    contenders: dict[str, Callable[[], object]], *, rounds: int = 7, sample_seconds: float = 0.03
) -> dict[str, Timing]:
    """Median-ready samples of every contender.

    Args:
        contenders: name -> a call without arguments.
        rounds: samples per contender.
        sample_seconds: a sample repeats a quick call until about this much time has passed.
    """
    calls = {}
    for name, call in contenders.items():
        call()  # warm-up: memory, code, caches
        calls[name] = max(1, round(sample_seconds / max(_seconds(call, 1), 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for round_number in range(rounds):
        for name in order if round_number % 2 == 0 else reversed(order):
            samples[name].append(_seconds(contenders[name], calls[name]))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def machine() -> dict[str, object]:
    """What a reader needs to know to place the figures."""
    return {
        "machine": platform.machine(),
        "processor": _processor_name(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cpu_isa": _C.cpu_isa(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)), flush=True)
