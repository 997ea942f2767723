"""Gives torch on Linux an `mps` device: builds ./device on top of ./framework, and opens torch's gates for it."""

import ctypes
import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import build, framework

SOURCES = build.HERE / "device"
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020A000000000000"  # torch 2.10, as setup.py has it
_TORCH = Path(torch.__file__).parent


def _flags() -> list[str]:
    torch_include = _TORCH / "include"
    system = [torch_include, torch_include / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return ["-std=c++20", "-fPIC", "-O1", "-gline-tables-only", "-Wall", "-Werror", abi,
            *(word for folder in system for word in ("-isystem", str(folder)))]  # fmt: skip


def _compile(source: Path, out: Path, flags: Sequence[str]) -> None:
    language = framework.objective_cpp() if source.suffix == ".mm" else ["-x", "c++", *framework.INCLUDES]
    command = [build.CLANG, *language, *_flags(), *flags, "-c", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise build.CompileError(f"{source} does not compile:\n{done.stderr.strip()}")


def _shared_object(
    name: str, sources: Sequence[Path], flags: Sequence[str], depends: Sequence[Path], link: Sequence[str] = ()
) -> Path:
    """Compiles and links sources against torch and the framework; what they lack is found at load time."""
    inputs = build.contents(*sources, *depends, framework.HERE / "include", Path(__file__))
    key = "\n".join([torch.__version__, str(_TORCH), *flags, inputs])

    def make(out: Path) -> None:
        objects = [out.with_name(f"{number}.o") for number in range(len(sources))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda pair: _compile(*pair, flags), zip(sources, objects, strict=True)))
        command = [build.CLANG, "-shared", *map(str, objects), f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
        command += [f"-Wl,-rpath,{_TORCH / 'lib'}", *framework.link_flags(), *link, "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise build.CompileError(f"{name} does not link:\n{done.stderr.strip()}")

    return build.cached(name, ".so", key, make)


def _python_module(path: Path) -> ModuleType:
    name = "metalsim_python"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, str(path), loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@cache
def install() -> bool:
    """Gives this process an `mps` device that runs Metal on the CPU. Returns False where a real one is there.

    Needs clang 19 and libobjc. METALSIM_CHECK, _ORDER, _SEED, _THREADS and _COMMIT choose how kernels run (README).
    """
    if torch.backends.mps.is_built():
        return False
    framework.load()
    headers = sorted(SOURCES.glob("*.h"))
    parts = [path for path in sorted(SOURCES.iterdir()) if path.suffix in (".mm", ".cpp") and path.stem != "python"]
    library = _shared_object("device", parts, [], headers)
    name = "-DTORCH_EXTENSION_NAME=metalsim_python"
    python = _shared_object("python", [SOURCES / "python.cpp"], [name], headers, ["-ltorch_python"])
    # Global, so that extensions find torch's MPS symbols, as they do in torch's own library on a Mac.
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    _open_gates(_python_module(python))
    return True


def _open_gates(module: ModuleType) -> None:
    """What torch decides by how it was built."""
    gates: Any = torch._C
    gates._has_mps = True
    for name in dir(module):
        if name.startswith("_mps_"):
            setattr(gates, name, getattr(module, name))
    for question in ("is_available", "is_macos_or_newer", "is_macos13_or_newer", "get_name", "get_core_count"):
        getattr(torch.backends.mps, question).cache_clear()
    torch.UntypedStorage.__new__ = _new_storage  # type: ignore[method-assign]


def _new_storage(kind: type, *arguments: Any, device: Any = None, **options: Any) -> torch.UntypedStorage:
    """UntypedStorage(bytes, device="mps"), which torch's own constructor has on a Mac only."""
    if device is None or torch.device(device).type != "mps":
        options.update({} if device is None else {"device": device})
        return torch._C.StorageBase.__new__(kind, *arguments, **options)
    return torch.empty(*(arguments or (0,)), dtype=torch.uint8, device=device).untyped_storage()


def load_extension(
    name: str, sources: Sequence[Path | str], include_dirs: Sequence[Path | str] = (), flags: Sequence[str] = ()
) -> None:
    """Builds an Objective-C++ extension for torch as a Mac would, and loads it; its operators are in torch.ops.

    It is built anew when a source changes, or a header beside one or in `include_dirs`. flags: for clang, such as
    STABLE_ABI. Raises CompileError.
    """
    install()
    paths = [Path(source) for source in sources]
    folders = {*(path.parent for path in paths), *map(Path, include_dirs)}
    headers = sorted(header for folder in folders for header in folder.rglob("*.h"))
    includes = [f"-I{folder}" for folder in include_dirs]
    torch.ops.load_library(_shared_object(name, paths, [*includes, *flags], headers))


@contextmanager
def record() -> Iterator[list[framework.Dispatch]]:
    """The dispatches of the block, in a list that is filled at its end. Waits for the device before and after."""
    torch.mps.synchronize()
    with framework.record() as dispatches:
        yield dispatches
        torch.mps.synchronize()


@contextmanager
def settings(**chosen: Any) -> Iterator[None]:
    """How kernels run inside the block: check, order, seed, threads, eager. Waits for the device before and after."""
    torch.mps.synchronize()
    with framework.settings(**chosen):
        yield
        torch.mps.synchronize()
