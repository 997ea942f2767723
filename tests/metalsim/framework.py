"""Builds and loads ./framework: Foundation, Metal and libdispatch for Linux, over libobjc, running on the engine."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from . import build, library

HERE = build.HERE / "framework"
INCLUDES = [f"-I{HERE / 'include'}", f"-I{HERE / 'include_linux'}"]
_LANGUAGE = ["-x", "objective-c++", "-fblocks", "-fobjc-runtime=gcc", "-fconstant-string-class=NSConstantString"]


class NotInstalledError(RuntimeError):
    """A tool that metalsim needs is not on this machine; the text names the package."""


def _gcc_folder() -> Path:
    """Where GNU libobjc's headers and library lie: a folder of gcc's own, by version."""
    folders = sorted(Path("/usr/lib/gcc").glob("*/*/include/objc/objc.h"), key=lambda path: int(path.parts[-4]))
    if not folders:
        version = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True).stdout.split(".")[0]
        raise NotInstalledError(f"libobjc is missing: install the package libobjc-{version.strip() or '12'}-dev")
    return folders[-1].parent.parent.parent


def need_tools() -> None:
    """Raises NotInstalledError naming the first package that is missing."""
    if not build.available():
        raise NotInstalledError(f"{build.CLANG} is missing: install the package clang-19")
    _gcc_folder()


def objective_cpp() -> list[str]:
    """clang's flags for a file of Objective-C++ on Linux."""
    return [*_LANGUAGE, *INCLUDES, f"-I{_gcc_folder() / 'include'}"]


def link_flags() -> list[str]:
    folder = build_framework().parent
    return [str(build_framework()), f"-Wl,-rpath,{folder}", f"-L{_gcc_folder()}", "-lobjc"]


def _compile_and_link(out: Path) -> None:
    command = f'-DMETALSIM_COMPILE_COMMAND="{build.HERE / "compile_command.py"}"'
    flags = ["-std=c++20", "-fPIC", "-O1", "-g1", "-Wall", "-Werror", command, *INCLUDES, f"-I{build.HERE / 'shim'}"]
    objects = []
    for source in sorted((HERE / "src").iterdir()):
        if source.suffix not in (".mm", ".cpp"):
            continue
        objects.append(out.with_name(source.name + ".o"))
        language = objective_cpp() if source.suffix == ".mm" else ["-x", "c++"]
        build.run([build.CLANG, *language, *flags, "-c", str(source), "-o", str(objects[-1])])
    name = "libmetalsim_framework.so"
    libraries = [f"-L{_gcc_folder()}", "-lobjc", "-ldl", "-lpthread"]
    build.run(
        [build.CLANG, "-shared", f"-Wl,-soname,{name}", *map(str, objects), *libraries, "-Wl,-z,defs", "-o", str(out)]
    )


@cache
def build_framework() -> Path:
    """The framework's shared object, by a name that others can link against."""
    need_tools()
    key = build.contents(HERE, build.HERE / "engine", build.HERE / "shim", Path(__file__)) + str(build.HERE)
    path = build.cached("framework", ".so", key, _compile_and_link)
    folder = path.with_suffix("")
    named = folder / "libmetalsim_framework.so"
    if not named.exists():
        folder.mkdir(exist_ok=True)
        part = folder / f"part{os.getpid()}"
        part.symlink_to(path)
        part.replace(named)
    return named


class _Settings(ctypes.Structure):
    _fields_ = [
        ("check", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("eager", ctypes.c_uint32),
        ("abort_on_misuse", ctypes.c_uint32),
    ]


class _Record(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char * 256),
        ("grid", ctypes.c_uint32 * 3),
        ("threadgroup", ctypes.c_uint32 * 3),
        ("counters", ctypes.c_void_p),
    ]


def _check_environment() -> None:
    """Refuses bad METALSIM_* values here, by an exception; the framework itself could only end the process."""
    choices = {"CHECK": ("0", "1"), "ORDER": tuple(library.ORDERS), "COMMIT": ("late", "eager"), "ABORT": ("0", "1")}
    for name, allowed in choices.items():
        value = os.environ.get(f"METALSIM_{name}")
        if value is not None and value not in allowed:
            raise ValueError(f"METALSIM_{name} must be one of {', '.join(allowed)}, not '{value}'")
    for name, least in (("SEED", 0), ("THREADS", 1)):
        value = os.environ.get(f"METALSIM_{name}")
        if value is not None and not (value.isascii() and value.isdigit() and int(value) >= least):
            raise ValueError(f"METALSIM_{name} must be a whole number of at least {least}, not '{value}'")


@cache
def load() -> ctypes.CDLL:
    """Builds (or finds) the framework and loads it into this process, its symbols open to all."""
    _check_environment()
    path = build_framework()
    os.environ.setdefault("METALSIM_PYTHON", sys.executable)
    # In Python an error can be raised, which is better than an end.
    os.environ.setdefault("METALSIM_ABORT", "0")
    handle = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for name in ("metalsim_start_recording", "metalsim_recorded"):
        getattr(handle, name).restype = ctypes.c_size_t
    handle.metalsim_record_at.argtypes = [ctypes.c_size_t, ctypes.POINTER(_Record)]
    handle.metalsim_live_objects.restype = ctypes.c_long
    return handle


def live_objects(class_name: str | None = None) -> int:
    """Objective-C objects alive in this process: all, or those of one class."""
    return int(load().metalsim_live_objects(class_name.encode() if class_name else None))


@contextmanager
def settings(
    *, check: bool | None = None, order: str | None = None, seed: int | None = None, threads: int | None = None,
    eager: bool | None = None,
) -> Iterator[None]:  # fmt: skip
    """How kernels run inside the block; None leaves a setting as it is. Work that waits still runs before a change only
    if it has been waited for."""
    before, chosen = _Settings(), _Settings()
    for one in (before, chosen):
        load().metalsim_get_settings(ctypes.byref(one))
    given = {"check": check, "order": None if order is None else library.ORDERS[order], "seed": seed,
             "threads": threads, "eager": eager}  # fmt: skip
    for name, value in given.items():
        if value is not None:
            setattr(chosen, name, value)
    load().metalsim_set_settings(ctypes.byref(chosen))
    try:
        yield
    finally:
        load().metalsim_set_settings(ctypes.byref(before))


@dataclass(frozen=True)
class Dispatch:
    """A kernel that ran: its name, the threads of its grid and of a threadgroup, and what it did."""

    kernel: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    counters: library.Counters


def _read(index: int) -> Dispatch:
    record = _Record()
    load().metalsim_record_at(index, ctypes.byref(record))
    counters = library.counters_at(record.counters)
    return Dispatch(record.kernel.decode(), tuple(record.grid), tuple(record.threadgroup), counters)


@contextmanager
def record() -> Iterator[list[Dispatch]]:
    """A list that is filled, at the block's end, with the dispatches that ran in it (those waited for)."""
    handle: Any = load()
    dispatches: list[Dispatch] = []
    start = handle.metalsim_start_recording()
    try:
        yield dispatches
    finally:
        dispatches += [_read(index) for index in range(start, handle.metalsim_recorded())]
        handle.metalsim_stop_recording()


def compile_program(source: Path, out: Path) -> None:
    """Builds an Objective-C++ program that uses the framework."""
    flags = ["-std=c++20", "-g1", "-Wall", "-Werror", f"-I{HERE}"]
    build.run([build.CLANG, *objective_cpp(), *flags, str(source), "-x", "none", *link_flags(), "-o", str(out)])
