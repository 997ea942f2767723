"""``python -m torch_qmm.bench``: operators and, with ``--model``, a whole model; tables and JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import torch

from torch_qmm.bench import operators
from torch_qmm.bench.timing import machine
from torch_qmm.formats import Format


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torch_qmm.bench", description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file whose prompt and decode speed to measure too")
    parser.add_argument("--no-compile", action="store_true", help="leave out the torch.compile contenders")
    parser.add_argument("--no-operators", action="store_true", help="measure the model only")
    parser.add_argument("--no-gguf", action="store_true", help="leave out unpacking by gguf-py")
    parser.add_argument("--cold", action="store_true", help="rotate over copies, so that weights come from memory")
    parser.add_argument("--formats", nargs="+", type=Format.parse, default=operators.FORMATS, metavar="FORMAT")
    parser.add_argument("--tokens", nargs="+", type=int, default=operators.TOKENS, metavar="M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="torch's number of threads")
    parser.add_argument("--json", type=Path, help="write all figures and samples to this file")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.model and importlib.util.find_spec("accelerate") is None:
        parser.error("--model also measures transformers' own route, which needs `pip install accelerate`")
    result = {"machine": machine(), "cold": args.cold, "rows": []}
    print(" | ".join(f"{key} {value}" for key, value in result["machine"].items()))
    if not args.no_operators:
        with torch.inference_mode():
            result["rows"] += operators.run(
                formats=args.formats,
                tokens=args.tokens,
                rounds=args.rounds,
                cold=args.cold,
                against_gguf=not args.no_gguf,
            )
    if args.model:
        from torch_qmm.bench import model

        result["rows"] += model.run(args.model, rounds=args.rounds, compiled=not args.no_compile)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
