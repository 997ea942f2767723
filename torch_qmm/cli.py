"""The command line: ``torch-qmm generate | inspect | doctor``.

Exit codes: 0; 1 for a file that is damaged or not supported; 2 for arguments that cannot be used; 130 when
interrupted. Errors are one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_qmm import __version__
from torch_qmm.formats import Format
from torch_qmm.gguf import GGUFError, GGUFFile

__all__ = ["main"]

_PROG = "torch-qmm"
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_LEAST_TEMPERATURE = 1e-3  # logits are divided by it and must stay finite, in float16 too
_SHOWN_ITEMS = 6  # of an array in a listing
_SHOWN_CHARACTERS = 100  # of a text in a listing


class _UsageError(Exception):
    """Arguments that cannot be used: exit code 2."""


class _FileError(Exception):
    """A file that nothing can be made of: exit code 1."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; ``argv`` is ``sys.argv[1:]`` if None."""
    _prepare_output()
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except _UsageError as e:
        return _fail(str(e), 2)
    except OSError as e:
        if isinstance(e, BrokenPipeError):
            return _quit_pipe()
        return _fail(f"{e.filename}: {e.strerror}" if e.filename else str(e), 2)
    except (GGUFError, _FileError) as e:
        return _fail(str(e), 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _prepare_output() -> None:
    """A closed stdout swallows what is written; a character that its encoding lacks is escaped, not an error."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _fail(message: str, code: int) -> int:
    print(f"{_PROG}: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _quit_pipe() -> int:
    """The reader of our output is gone, as with ``| head``: nothing is wrong, and nothing more can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROG, description="GGUF models in PyTorch, their weights kept packed.")
    parser.add_argument("--version", action="version", version=f"{_PROG} {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    generate = commands.add_parser("generate", help="continue or answer a prompt")
    generate.add_argument("--model", type=Path, required=True, metavar="FILE", help="a GGUF file")
    generate.add_argument("--prompt", required=True, metavar="TEXT")
    generate.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    generate.add_argument("--device", default="cpu", help="cpu or mps (default: cpu)")
    generate.add_argument("--dtype", choices=_DTYPES, default="float32", help="of activations (default: float32)")
    generate.add_argument("--max-new-tokens", type=_positive, default=128, metavar="N", help="default: 128")
    generate.add_argument(
        "--temperature", type=_temperature, default=0.0, metavar="T", help="0 takes the likeliest token (default)"
    )
    generate.add_argument("--seed", type=_seed, default=0, help="of sampling (default: 0)")
    generate.set_defaults(run=_generate)

    inspect = commands.add_parser("inspect", help="list the metadata and tensors of a GGUF file")
    inspect.add_argument("file", type=Path, metavar="FILE")
    inspect.add_argument("--json", action="store_true", help="as JSON")
    inspect.set_defaults(run=_inspect)

    doctor = commands.add_parser("doctor", help="say what this installation can do")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number from 1")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number from 0 to 2^63 - 1")
    return int(text)


def _temperature(text: str) -> float:
    with contextlib.suppress(ValueError):
        value = float(text)
        if value == 0 or _LEAST_TEMPERATURE <= value < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"got {text!r}, want 0 or a number from {_LEAST_TEMPERATURE}")


# --- generate ---


def _generate(args: argparse.Namespace) -> None:
    device = _device(args.device)
    model, tokenizer = _load(args.model, device, _DTYPES[args.dtype])
    ids = _prompt_ids(tokenizer, args).to(device)
    torch.manual_seed(args.seed)
    sampling = {"do_sample": True, "temperature": args.temperature, "top_k": 0} if args.temperature else {}
    streamer = _timed_streamer(tokenizer)
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=args.max_new_tokens,
            streamer=streamer,
            **({"do_sample": False} | sampling),
        )
    _report_speed(ids.shape[1], start, streamer.times)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        usable = device.type in ("cpu", "mps") and torch.empty(1, device=device).device.type == device.type
    except (RuntimeError, AssertionError, NotImplementedError):
        usable = False
    if not usable:
        raise _UsageError(f"--device: got {name!r}, which is not available here, want cpu or mps")
    return device


def _load(path: Path, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    # Only this command needs transformers, which takes seconds to import and need not be there.
    try:
        from transformers.utils import logging

        from torch_qmm.models import ModelLoadError, load_model
    except ModuleNotFoundError as e:
        raise _UsageError(f'generate: {e}; pip install "torch_qmm[models]" brings it') from e

    logging.set_verbosity_error()
    try:
        model, tokenizer = load_model(path, device=device, dtype=dtype)
    except ModelLoadError as e:
        raise _FileError(str(e)) from e
    if tokenizer is None:
        raise _FileError(f"{path}: the file has no tokenizer, want one to read the prompt with")
    return model, tokenizer


def _prompt_ids(tokenizer: Any, args: argparse.Namespace) -> torch.Tensor:
    """The prompt as ids ``[1, tokens]``."""
    try:
        args.prompt.encode()
    except UnicodeEncodeError as e:
        raise _UsageError("--prompt: got bytes that are not UTF-8, want a text") from e
    if not args.chat:
        ids = tokenizer.encode(args.prompt)
    elif tokenizer.chat_template is None:
        raise _FileError(f"{args.model}: the file has no chat template, want one for --chat")
    else:
        chat = [{"role": "user", "content": args.prompt}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise _UsageError("--prompt: got a text without tokens, want at least one")
    return torch.tensor([ids])


def _timed_streamer(tokenizer: Any) -> Any:
    from transformers import TextStreamer

    class TimedStreamer(TextStreamer):
        """Prints text as it comes and notes when each token did."""

        def __init__(self) -> None:
            super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
            self.times: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            if not self.next_tokens_are_prompt:
                self.times.append(time.perf_counter())
            super().put(value)

    return TimedStreamer()


def _report_speed(prompt_tokens: int, start: float, times: list[float]) -> None:
    """The first new token comes out of the prompt's own pass; decoding is what follows it."""
    prefill, decode, steps = times[0] - start, times[-1] - times[0], len(times) - 1
    speed = f"{steps / decode:.1f} tokens/s" if steps else "nothing to time"
    print(
        f"prompt: {prompt_tokens} tokens, {prompt_tokens / prefill:.1f} tokens/s; decode: {len(times)} tokens, {speed}",
        file=sys.stderr,
    )


# --- inspect ---


def _inspect(args: argparse.Namespace) -> None:
    with GGUFFile(args.file) as file:
        if args.json:
            json.dump(_file_summary(file), sys.stdout, indent=1)
            print()
        else:
            print("\n".join(_file_lines(file)))


def _totals(file: GGUFFile) -> dict[str, dict[str, int]]:
    """Tensors and bytes of each format, the largest share first."""
    totals: dict[str, dict[str, int]] = {}
    for info in file.tensors.values():
        total = totals.setdefault(info.format.name, {"tensors": 0, "bytes": 0})
        total["tensors"] += 1
        total["bytes"] += info.nbytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]["bytes"]))


def _file_summary(file: GGUFFile) -> dict[str, Any]:
    return {
        "files": [str(path) for path in file.paths],
        "version": file.version,
        "alignment": file.alignment,
        "metadata": {key: _json_value(value) for key, value in file.metadata.items()},
        "tensors": [
            {
                "name": info.name,
                "format": info.format.name,
                "shape": list(info.shape),
                "bytes": info.nbytes,
                "offset": info.offset,
                "file": info.shard,
            }
            for info in file.tensors.values()
        ],
        "totals": _totals(file),
        "bytes": file.nbytes,
    }


def _json_value(value: Any) -> Any:
    """JSON has no infinities, and nobody wants a vocabulary: long arrays become a length and their beginning."""
    if isinstance(value, np.ndarray | list):
        first = [_json_value(item) for item in _items(value)]
        return first if len(value) <= _SHOWN_ITEMS else {"length": len(value), "first": first}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _items(values: np.ndarray | list[Any]) -> list[Any]:
    first = values[:_SHOWN_ITEMS]
    return first.tolist() if isinstance(first, np.ndarray) else first


def _file_lines(file: GGUFFile) -> Iterator[str]:
    yield from (_printable(str(path)) for path in file.paths)
    yield f"GGUF version {file.version}, {len(file.tensors)} tensors, {_size(file.nbytes)}"
    yield ""
    for key, value in file.metadata.items():
        yield f"{_printable(key)} = {_text(value)}"
    yield ""
    names = {name: _printable(name) for name in file.tensors}
    width = max(map(len, names.values()), default=0)
    for name, info in file.tensors.items():
        shape = " x ".join(map(str, info.shape))
        yield f"{names[name]:{width}}  {info.format.name:8} {shape:>20} {info.nbytes:>14,} bytes"
    yield ""
    for name, total in _totals(file).items():
        share = 100 * total["bytes"] / file.nbytes
        yield f"{name:8} {total['tensors']:>5} tensors {_size(total['bytes']):>10} {share:5.1f} %"


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray | list):
        rest = f", ... {len(value)} in all" if len(value) > _SHOWN_ITEMS else ""
        return f"[{', '.join(_text(item) for item in _items(value))}{rest}]"
    if isinstance(value, str):
        text = repr(value[:_SHOWN_CHARACTERS])
        return text if len(value) <= _SHOWN_CHARACTERS else f"{text}... {len(value)} characters in all"
    return str(value)


def _printable(text: str) -> str:
    """A name from a file must not reach the terminal as a control sequence."""
    return text if text.isprintable() else repr(text)


def _size(nbytes: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


# --- doctor ---


def _doctor(args: argparse.Namespace) -> None:
    facts = _facts()
    if args.json:
        json.dump(facts, sys.stdout, indent=1)
        print()
        return
    for name, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else {True: "yes", False: "no", None: "-"}.get(value, value)
        print(f"{name.replace('_', ' '):14} {text}")


def _facts() -> dict[str, Any]:
    from torch_qmm import _C

    return {
        "torch_qmm": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "gguf": _version("gguf"),
        "extension": _C.__file__,
        "cpu_isa": _C.cpu_isa(),
        "cpu_isas": list(_C.cpu_isas()),
        "threads": torch.get_num_threads(),
        "mps": torch.backends.mps.is_available(),
        "formats": [fmt.name for fmt in Format],
    }


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None
