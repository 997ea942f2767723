"""Compiles shaders and the engine with clang, and keeps the results by content hash."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from .inlining import function_with_operation
from .source import Program, SourceError, translate
from .swizzle import swizzle_header

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "metalsim"
KEEP_SECONDS = 30 * 24 * 3600
CLANG = os.environ.get("METALSIM_CLANG", "clang++-19")
# Apple's own headers: all stand for the one shim, which the build step puts before every shader.
HEADERS = (
    "stdlib atomic array common compute geometric graphics integer limits math matrix numeric pack relational "
    "simdgroup simdgroup_matrix type_traits types uniform vector config"
)
MSL_VERSION = "320"

COMMON = ["-std=c++17", "-fPIC", "-march=native", "-w"]
# Strict aliasing is off because kernels read packed blocks through other types; denormals and rounding stay IEEE's.
# A tail call would hide its place.
SHADER = [
    *COMMON, "-ffreestanding", "-nostdinc", "-nostdinc++", "-fdeclspec", "-fno-strict-aliasing", "-fno-exceptions",
    "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden", "-ffp-contract=fast",
    "-fno-optimize-sibling-calls", "-ffunction-sections",
    "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none",
    "-fsanitize=integer-divide-by-zero", "-fno-sanitize-recover=all", "-gline-tables-only", "-ftemplate-depth=2048",
    "-Wno-invalid-constexpr", "-D__METAL__=1", f"-D__METAL_VERSION__={MSL_VERSION}",
]  # fmt: skip
# Vectors may stand at any alignment unless checked mode, which reports it, has the loads at their own.
FAST = ["-O2", "-fmax-type-align=1"]
CHECKED = [
    "-DMETALSIM_CHECKED", "-O1", "-fno-vectorize", "-fno-slp-vectorize", "-fsanitize=thread",
    "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-atomics=0",
    "-mllvm", "-tsan-instrument-read-before-write=1",
]  # fmt: skip

# Metal has no recursion, so every function can be inlined: then a call's address stands for the calls that led there.
PRELUDE = """#include <metal_stdlib>
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
"""
POSTLUDE = "\n#pragma clang attribute pop\n"


class CompileError(Exception):
    """clang refused the shader; the text names file and line."""


def available() -> bool:
    return shutil.which(CLANG) is not None


def run(command: Sequence[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr.strip())
    return done.stdout


@cache
def _machine() -> str:
    """What every build depends on: the compiler and the processor."""
    version = subprocess.run([CLANG, "--version"], capture_output=True, text=True).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = [line for line in lines if line.startswith(("flags", "Features"))][:1]
    return "".join([version, *cpu])


def _demangled(name: str) -> str:
    tool = shutil.which("llvm-cxxfilt-19") or shutil.which("llvm-cxxfilt") or shutil.which("c++filt")
    return run([tool, name]).strip() if tool else name


@cache
def contents(*folders: Path) -> str:
    """The digest of all sources in these folders (and files), for a cache key."""
    digest = hashlib.sha256()
    for path in sorted(file for folder in folders for file in (folder.rglob("*") if folder.is_dir() else [folder])):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def shader_tools() -> str:
    """Everything but the shader that a shader's build depends on."""
    modules = ("build", "source", "language", "tokens", "swizzle", "divergence", "inlining")
    return contents(HERE / "shim", *(HERE / f"{name}.py" for name in modules))


def cached(name: str, suffix: str, key: str, make: Callable[[Path], None]) -> Path:
    """The file that `make` wrote under this key, now or earlier. Safe with several processes at once."""
    digest = hashlib.sha256((_machine() + key).encode()).hexdigest()[:24]
    path = CACHE / f"{name}-{digest}{suffix}"
    if not _used(path):
        CACHE.mkdir(parents=True, exist_ok=True)
        _prune(CACHE)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            part = Path(folder) / f"part{suffix}"
            make(part)
            os.replace(part, path)
    return path


def _used(path: Path) -> bool:
    """Whether the entry is there; it's marked as in use."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


@cache
def _prune(folder: Path) -> None:
    """Once a process, removes what nobody has used for a month. What a process has loaded stays with it."""
    for entry in folder.iterdir():
        try:
            if time.time() - entry.stat().st_mtime < KEEP_SECONDS:
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        except FileNotFoundError:  # another process was first
            continue


def engine() -> Path:
    sources = sorted(str(p) for p in (HERE / "engine").glob("*.cpp"))

    def make(out: Path) -> None:
        run([CLANG, *COMMON, "-O2", "-fno-exceptions", "-shared", f"-I{HERE / 'shim'}", *sources, "-o", str(out)])

    return cached("engine", ".so", contents(HERE / "engine", HERE / "shim", HERE / "build.py"), make)


@cache
def include_folder() -> Path:
    """Holds the generated swizzles and an empty file for each of Apple's headers."""
    folder = CACHE / f"include-{shader_tools()[:16]}"
    if not _used(folder):
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
        return run([*command, str(source)]), str(source)
    return run([*command, "-"], text=f'# 1 "<source>"\n{source}'), "<source>"


def compile_shader(text: str, file: str, checked: bool) -> tuple[Path, Program]:
    """The shared object of a preprocessed shader, and what the source pass learned."""
    program = translate(text, file)

    def make(out: Path) -> None:
        command = [CLANG, *SHADER, *(CHECKED if checked else FAST), "-x", "c++"]
        command += [f"-isystem{HERE / 'shim'}", f"-isystem{include_folder() / 'generated'}"]
        object_file = out.with_suffix(".o")
        run([*command, "-c", "-", "-o", str(object_file)], text=f"{PRELUDE}{program.text}{POSTLUDE}")
        function = function_with_operation(object_file)
        if function:
            raise CompileError(
                f"{file}: '{_demangled(function)}' holds simdgroup operations or barriers but cannot be inlined: "
                "it calls itself or is noinline"
            )
        # The engine is loaded first and provides what is missing here.
        run([CLANG, "-shared", str(object_file), "-o", str(out), "-lm"])

    return cached("shader", ".so", f"{checked}\n{shader_tools()}\n{text}", make), program


def intermediate_code(text: str) -> str:
    """LLVM's text of C++ that the source pass made, with nothing optimised away."""
    output = ["-O0", "-Xclang", "-disable-llvm-passes", "-femit-all-decls", "-S", "-emit-llvm", "-o", "-"]
    folders = [f"-isystem{HERE / 'shim'}", f"-isystem{include_folder() / 'generated'}"]
    return run([CLANG, *SHADER, *output, "-x", "c++", *folders, "-"], text=text)


__all__ = ["CompileError", "SourceError", "available", "compile_shader", "engine", "preprocess"]
