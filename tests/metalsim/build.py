"""Compiles shaders and the engine with clang, and keeps the results by content hash."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from .source import Program, SourceError, translate
from .swizzle import swizzle_header

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "metalsim"
CLANG = os.environ.get("METALSIM_CLANG", "clang++-19")
# Apple's own headers: all stand for the one shim, which the build step puts before every shader.
HEADERS = (
    "stdlib atomic array common compute geometric graphics integer limits math matrix numeric pack relational "
    "simdgroup simdgroup_matrix type_traits types uniform vector config"
)
MSL_VERSION = "320"

COMMON = ["-std=c++17", "-fPIC", "-march=native", "-w"]
# Strict aliasing is off because kernels read packed blocks through other types; denormals and rounding stay IEEE's.
SHADER = [
    *COMMON, "-ffreestanding", "-nostdinc", "-nostdinc++", "-fdeclspec", "-fno-strict-aliasing", "-fno-exceptions",
    "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden", "-ffp-contract=fast",
    "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none",
    "-fsanitize=integer-divide-by-zero", "-fno-sanitize-recover=all", "-gline-tables-only", "-ftemplate-depth=2048",
    "-Wno-invalid-constexpr", "-D__METAL__=1", f"-D__METAL_VERSION__={MSL_VERSION}",
]  # fmt: skip
# Vectors may stand at any alignment unless checked mode, which reports it, has the loads at their own.
FAST = ["-O2", "-fmax-type-align=1"]
CHECKED = [
    "-DMETALSIM_CHECKED", "-O1", "-fno-vectorize", "-fno-slp-vectorize", "-fsanitize=thread",
    "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-atomics=0",
]  # fmt: skip


class CompileError(Exception):
    """clang refused the shader; the text names file and line."""


def available() -> bool:
    return shutil.which(CLANG) is not None


def _run(command: Sequence[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr.strip())
    return done.stdout


@cache
def _toolchain() -> str:
    """Everything but the shader that a build depends on."""
    version = subprocess.run([CLANG, "--version"], capture_output=True, text=True).stdout
    digest = hashlib.sha256(version.encode())
    for path in sorted(HERE.rglob("*")):
        if path.suffix in (".h", ".py", ".cpp") or path.name == "metal_stdlib":
            digest.update(path.read_bytes())
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")][:1]
    digest.update("".join(cpu).encode())
    return digest.hexdigest()


def cached(name: str, suffix: str, key: str, make: Callable[[Path], None]) -> Path:
    """The file that `make` wrote under this key, now or earlier. Safe with several processes at once."""
    digest = hashlib.sha256((_toolchain() + key).encode()).hexdigest()[:24]
    path = CACHE / f"{name}-{digest}{suffix}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            part = Path(folder) / f"part{suffix}"
            make(part)
            os.replace(part, path)
    return path


def engine() -> Path:
    sources = sorted(str(p) for p in (HERE / "engine").glob("*.cpp"))

    def make(out: Path) -> None:
        _run([CLANG, *COMMON, "-O2", "-fno-exceptions", "-shared", f"-I{HERE / 'shim'}", *sources, "-o", str(out)])

    return cached("engine", ".so", "engine", make)


@cache
def include_folder() -> Path:
    """Holds the generated swizzles and an empty file for each of Apple's headers."""
    folder = CACHE / f"include-{_toolchain()[:16]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=CACHE))
        (part / "generated" / "metalsim").mkdir(parents=True)
        (part / "generated" / "metalsim" / "swizzle.inc").write_text(swizzle_header())
        (part / "apple").mkdir()
        for name in HEADERS.split():
            (part / "apple" / f"metal_{name}").write_text("#pragma once\n")
        try:
            part.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(part)
    return folder


def preprocess(source: Path | str, include_dirs: Sequence[Path | str], defines: Sequence[str] = ()) -> tuple[str, str]:
    """The shader with its own headers and macros expanded, and the name it goes by in messages."""
    includes = [f"-I{folder}" for folder in include_dirs]
    command = [CLANG, "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-w", "-undef",
               "-D__METAL__=1", f"-D__METAL_VERSION__={MSL_VERSION}", "-D__METAL_MACOS__=1",
               f"-isystem{include_folder() / 'apple'}", *includes, *defines]  # fmt: skip
    if isinstance(source, Path):
        return _run([*command, str(source)]), str(source)
    return _run([*command, "-"], text=f'# 1 "<source>"\n{source}'), "<source>"


def compile_shader(text: str, file: str, checked: bool) -> tuple[Path, Program]:
    """The shared object of a preprocessed shader, and what the source pass learned."""
    program = translate(text, file)

    def make(out: Path) -> None:
        command = [CLANG, *SHADER, *(CHECKED if checked else FAST), "-x", "c++"]
        command += [f"-isystem{HERE / 'shim'}", f"-isystem{include_folder() / 'generated'}"]
        object_file = out.with_suffix(".o")
        _run([*command, "-c", "-", "-o", str(object_file)], text=f"#include <metal_stdlib>\n{program.text}")
        # The engine is loaded first and provides what is missing here.
        _run([CLANG, "-shared", str(object_file), "-o", str(out), "-lm"])

    return cached("shader", ".so", f"{checked}\n{text}", make), program


__all__ = ["CompileError", "SourceError", "available", "compile_shader", "engine", "preprocess"]
