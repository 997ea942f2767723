"""Prompt and decode speed of a GGUF model: packed by torch_qmm against transformers' own unpacked route."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from torch_qmm.bench.timing import Timing, print_table
from torch_qmm.models import load_model

PROMPT_TOKENS = 256
DECODE_TOKENS = 32


def run(path: str | Path, *, rounds: int = 5, compiled: bool = True) -> list[dict[str, object]]:
    """Tokens per second of prompt processing and of decoding; greedy, one sequence, a static cache for all."""
    path = Path(path)
    loaders = {
        "torch_qmm float32": lambda: load_model(path, dtype=torch.float32)[0],
        "torch_qmm bfloat16": lambda: load_model(path, dtype=torch.bfloat16)[0],
        "transformers float32": lambda: _transformers_model(path, torch.float32),
        "transformers bfloat16": lambda: _transformers_model(path, torch.bfloat16),
    }
    models, loads = {}, []
    for name, load in loaders.items():
        start = time.perf_counter()
        models[name] = load()
        loads.append(_load_row(name, time.perf_counter() - start, models[name]))
    print_table(
        "loading (imports included where first needed)",
        ["model", "s", "parameters MB"],
        [[row["contender"], f"{row['load_s']:.2f}", f"{row['parameter_bytes'] / 1e6:.0f}"] for row in loads],
    )
    steps = {name: (model, model) for name, model in models.items()}
    if compiled:
        for name, model in models.items():
            steps[f"{name} compiled"] = (model, torch.compile(model, dynamic=False))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    order = list(steps)
    with torch.inference_mode():
        for name in order:
            _generate(*steps[name])  # warm-up and compilation
        for round_number in range(rounds):
            for name in order if round_number % 2 == 0 else reversed(order):
                samples[name].append(_generate(*steps[name]))
    rows = [_row(name, values) for name, values in samples.items()]
    _print(rows)
    return loads + rows


def _transformers_model(path: Path, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype).eval()


def _generate(model: torch.nn.Module, step: torch.nn.Module) -> tuple[float, float]:
    """Seconds of the prompt pass and of one decoded token. `step` is the model, or the model compiled."""
    from transformers import StaticCache

    ids = torch.randint(0, model.config.vocab_size, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    cache = StaticCache(config=model.config, max_cache_len=PROMPT_TOKENS + DECODE_TOKENS)
    start = time.perf_counter()
    out = step(ids, cache=cache, logits_to_keep=1)
    token = out.logits[:, -1:].argmax(-1)
    middle = time.perf_counter()
    for _ in range(DECODE_TOKENS):
        out = step(token, cache=cache, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
    return middle - start, (time.perf_counter() - middle) / DECODE_TOKENS


def _load_row(name: str, seconds: float, model: torch.nn.Module) -> dict[str, object]:
    parameters = sum(p.nbytes for p in model.parameters())
    return {"bench": "load", "contender": name, "load_s": seconds, "parameter_bytes": parameters}


def _row(name: str, values: list[tuple[float, float]]) -> dict[str, object]:
    prompt, decode = (Timing(tuple(column)) for column in zip(*values, strict=True))
    return {
        "bench": "model",
        "contender": name,
        "prompt_tokens_per_s": PROMPT_TOKENS / prompt.median,
        "prompt_spread": prompt.spread,
        "decode_tokens_per_s": 1 / decode.median,
        "decode_spread": decode.spread,
        "samples_s": values,
    }


def _print(rows: list[dict[str, object]]) -> None:
    by_name = {row["contender"]: row for row in rows}

    def cells(row: dict[str, object]) -> list[str]:
        suffix = " compiled" if row["contender"].endswith("compiled") else ""
        base = by_name[f"transformers float32{suffix}"]
        result = [row["contender"]]
        for kind in ("prompt", "decode"):
            speed, spread = row[f"{kind}_tokens_per_s"], row[f"{kind}_spread"]
            result += [f"{speed:.1f} +-{spread:.0%}", f"{speed / base[f'{kind}_tokens_per_s']:.2f}x"]
        return result

    header = ["model", f"prompt ({PROMPT_TOKENS}) tokens/s", "ratio", "decode tokens/s", "ratio"]
    print_table("ratio = to transformers float32, eager or compiled alike", header, [cells(row) for row in rows])
