"""The Python front: compile a shader, set its constants, dispatch, and get counters or a fault."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import build
from .source import KernelInfo

MAX_BUFFERS = 31
THREADGROUP_LIMIT = 32768
ORDERS = {"fifo": 0, "lifo": 1, "random": 2}


class Fault(Exception):  # noqa: N818
    """Something that Metal forbids or leaves undefined, found while a kernel ran in checked mode."""

    def __init__(self, kind: str, message: str, kernel: str, file: str, line: int, record: "_Fault") -> None:
        self.kind = kind
        self.kernel = kernel
        self.file = file
        self.line = line
        self.threadgroup = tuple(record.group)
        self.thread = tuple(record.thread)
        super().__init__(
            f"{kind}: {message}\n  kernel {kernel}, threadgroup {self.threadgroup}, thread {self.thread}, {file}:{line}"
        )


class _BufferCounters(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("read_issued", "written_issued", "read_distinct", "written_distinct")]


_TOTALS = (
    "threads", "threadgroups", "barriers", "simd_operations", "inactive_lanes", "idle_lanes", "multiply_accumulates",
    "fiber_switches",
)  # fmt: skip


class _Counters(ctypes.Structure):
    _fields_ = [*[(n, ctypes.c_uint64) for n in _TOTALS], ("buffers", _BufferCounters * MAX_BUFFERS)]


class _Binding(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("constant", ctypes.c_uint32),
        ("read_only", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
    ]


class _Fault(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 480),
        ("group", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("index", ctypes.c_uint32),
        ("program_counter", ctypes.c_uint64),
        ("file", ctypes.c_char * 256),
        ("line", ctypes.c_int32),
    ]


class _ConstantValue(ctypes.Structure):
    _fields_ = [
        ("index", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("bytes", ctypes.c_char_p),
        ("size", ctypes.c_uint64),
    ]


class _Request(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("buffers", _Binding * MAX_BUFFERS),
        ("threadgroup_bytes", ctypes.c_uint64 * MAX_BUFFERS),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("checked", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("image_begin", ctypes.c_void_p),
        ("image_end", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("values", ctypes.POINTER(_ConstantValue)),
        ("value_count", ctypes.c_uint64),
    ]


class _KernelRecord(ctypes.Structure):
    pass


_KernelRecord._fields_ = [
    ("name", ctypes.c_char_p),
    ("run", ctypes.c_void_p),
    ("next", ctypes.POINTER(_KernelRecord)),
    ("least_bytes", ctypes.c_void_p),
    ("parameters", ctypes.c_uint),
]


class _ConstantRecord(ctypes.Structure):
    pass


_ConstantRecord._fields_ = [
    ("index", ctypes.c_int),
    ("name", ctypes.c_char_p),
    ("value", ctypes.c_void_p),
    ("size", ctypes.c_uint),
    ("defined", ctypes.c_void_p),
    ("derive", ctypes.c_void_p),
    ("next", ctypes.POINTER(_ConstantRecord)),
]


@dataclass(frozen=True)
class BufferTraffic:
    """Bytes of one buffer: as issued by all threads, and distinct ones. Counted in checked mode only."""

    read_issued: int = 0
    written_issued: int = 0
    read_distinct: int = 0
    written_distinct: int = 0


@dataclass(frozen=True)
class Counters:
    """What a dispatch did.

    `multiply_accumulates` counts 8x8 products by simdgroup. `inactive_lanes` sums, over all simdgroup operations, the
    lanes that took no part. `idle_lanes` counts the threads that took no part in their simdgroup's work loop: that read
    nothing of the device buffer from which their simdgroup read most (checked mode only).
    """

    threads: int = 0
    threadgroups: int = 0
    barriers: int = 0
    simd_operations: int = 0
    inactive_lanes: int = 0
    idle_lanes: int = 0
    multiply_accumulates: int = 0
    fiber_switches: int = 0
    buffers: tuple[BufferTraffic, ...] = field(default=())


def _read_counters(raw: _Counters, buffers: int) -> Counters:
    names = [name for name, _ in _BufferCounters._fields_]
    traffic = tuple(BufferTraffic(*(getattr(b, name) for name in names)) for b in raw.buffers[:buffers])
    return Counters(**{name: getattr(raw, name) for name in _TOTALS}, buffers=traffic)


def counters_at(address: int) -> Counters:
    """The engine's own struct, as the Metal framework hands it out."""
    return _read_counters(_Counters.from_address(address), MAX_BUFFERS)


@cache
def _engine() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.engine()), mode=ctypes.RTLD_GLOBAL)
    library.metalsim_dispatch.argtypes = [ctypes.POINTER(t) for t in (_Request, _Counters, _Fault)]
    return library


class _Image:
    """One shared object of a shader: its kernels and constants."""

    def __init__(self, path: Path) -> None:
        _engine()
        self.path = path
        self.handle = ctypes.CDLL(str(path))
        for name in ("metalsim_kernels", "metalsim_constants", "metalsim_image_begin", "metalsim_image_end"):
            getattr(self.handle, name).restype = ctypes.c_void_p
        self.begin = int(self.handle.metalsim_image_begin())
        self.end = int(self.handle.metalsim_image_end())
        self.kernels = {r.name.decode(): r.run for r in self._records("metalsim_kernels", _KernelRecord)}
        self.constants = [r for r in self._records("metalsim_constants", _ConstantRecord) if r.name]

    def _records(self, name: str, kind: type) -> list[Any]:
        address, records = getattr(self.handle, name)(), []
        while address:
            record = kind.from_address(address)
            records.append(record)
            address = ctypes.cast(record.next, ctypes.c_void_p).value
        return records

    def constant_values(self, values: Mapping[int | str, Any]) -> "ctypes.Array[_ConstantValue]":
        """What the engine sets before a dispatch; a value by index comes before one by name."""
        given = []
        for record in self.constants:
            name = record.name.decode()
            key = record.index if record.index in values else name
            if key in values:
                data = _bytes_of(values[key], record.size, name)
                given.append(_ConstantValue(record.index, record.name, data, len(data)))
        return (_ConstantValue * len(given))(*given)

    def location(self, program_counter: int) -> tuple[str, int]:
        """File and line of a call in the shader: the innermost frame that is not the shim's own."""
        symbolizer = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
        inside = self.begin <= program_counter < self.end
        if not symbolizer or not inside:
            return "?", 0
        # A return address is one past the call.
        address = hex(program_counter - self.begin - 1)
        command = [symbolizer, f"--obj={self.path}", "--inlining", "--functions=none", address]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        frames = [m.groups() for m in (re.fullmatch(r"(.*):(\d+):\d+", line) for line in lines) if m]
        shim = str(build.HERE / "shim")
        own = [(f, int(n)) for f, n in frames if not f.startswith(shim) and "swizzle.inc" not in f]
        file, line = own[0] if own else ("?", 0)
        return ("<source>" if file.endswith("<source>") else file), line


def _bytes_of(value: Any, size: int, name: str) -> bytes:
    """A constant's value in the room that the shader has for it."""
    if isinstance(value, bool | int | np.bool_) and not isinstance(value, np.generic):
        return int(value).to_bytes(size, "little", signed=int(value) < 0)
    data = np.float32(value).tobytes() if isinstance(value, float) else np.asarray(value).tobytes()
    if len(data) != size:
        raise ValueError(f"function constant {name} has {size} bytes, the value has {len(data)}")
    return data


class Library:
    """A compiled shader. Fast and checked code are built when first needed."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._images: dict[bool, _Image] = {}
        self._kernels: dict[str, KernelInfo] = {}
        self.image(checked=False)

    @property
    def kernel_names(self) -> list[str]:
        return sorted(self._kernels)

    def image(self, checked: bool) -> _Image:
        if checked not in self._images:
            path, program = build.compile_shader(self._text, self._file, checked)
            self._kernels = program.kernels
            self._images[checked] = _Image(path)
        return self._images[checked]

    def kernel(self, name: str, constants: Mapping[int | str, Any] | None = None) -> "Kernel":
        """The kernel with this host name, and with these function constants (by index or name)."""
        if name not in self._kernels:
            raise KeyError(f"no kernel '{name}'; there are {', '.join(self.kernel_names)}")
        values = dict(constants or {})
        known = {key for r in self.image(False).constants for key in (r.index, r.name.decode())}
        unknown = [str(key) for key in values if key not in known]
        if unknown:
            raise KeyError(f"no function constant {', '.join(unknown)}")
        return Kernel(self, self._kernels[name], values)


def _three(size: int | Sequence[int]) -> tuple[int, int, int]:
    values = [size] if isinstance(size, int) else list(size)
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise ValueError(f"{size} is no size of one to three positive numbers")
    return tuple([*values, 1, 1][:3])  # type: ignore[return-value]


@dataclass(frozen=True)
class Kernel:
    library: Library
    info: KernelInfo
    constants: dict[int | str, Any]

    def dispatch(
        self,
        *,
        threadgroup: int | Sequence[int],
        grid: int | Sequence[int] | None = None,
        groups: int | Sequence[int] | None = None,
        buffers: Sequence[Any] = (),
        bytes: Mapping[int, Any] | None = None,
        threadgroup_memory: Sequence[int] = (),
        checked: bool = True,
        order: str = "random",
        seed: int = 0,
        workers: int | None = None,
    ) -> Counters:
        """Runs the kernel on `grid` threads or `groups` threadgroups.

        buffers: by index; numpy arrays, which the kernel writes in place, (array, offset in bytes), or None.
        bytes: {index: array or bytes} for small constant arguments.
        threadgroup_memory: bytes by index. Raises Fault.
        """
        if (grid is None) == (groups is None):
            raise ValueError("give either grid (threads) or groups (threadgroups)")
        size = _three(threadgroup)
        if size[0] * size[1] * size[2] > self.info.max_threads:
            raise ValueError(f"a threadgroup of {size} has more than the kernel's {self.info.max_threads} threads")
        if sum(threadgroup_memory) > THREADGROUP_LIMIT:
            raise ValueError(f"more than {THREADGROUP_LIMIT} bytes of threadgroup memory")
        threads = (
            _three(grid) if grid is not None else tuple(a * b for a, b in zip(_three(groups or 1), size, strict=True))
        )
        image = self.library.image(checked)
        request = _Request(kernel=image.kernels[self.info.name], checked=checked, order=ORDERS[order], seed=seed)
        request.grid, request.group = threads, size
        request.workers = workers or os.cpu_count() or 1
        request.image_begin, request.image_end = image.begin, image.end
        request.constants = image.handle.metalsim_constants()
        for index, length in enumerate(threadgroup_memory):
            request.threadgroup_bytes[index] = length
        kept = self._bind(request, buffers, bytes or {})
        values = image.constant_values(self.constants)
        request.values, request.value_count = values, len(values)
        counters, fault = _Counters(), _Fault()
        failed = _engine().metalsim_dispatch(ctypes.byref(request), ctypes.byref(counters), ctypes.byref(fault))
        del kept
        if failed:
            raise self._fault(image, fault)
        bound = max((i for i, b in enumerate(request.buffers) if b.address), default=-1) + 1
        return _read_counters(counters, bound)

    def _bind(self, request: _Request, buffers: Sequence[Any], small: Mapping[int, Any]) -> list[Any]:
        """Fills in the buffers' addresses; returns what must stay alive."""
        kept: list[Any] = []
        given: dict[int, Any] = {i: b for i, b in enumerate(buffers) if b is not None}
        for index, value in small.items():
            # Room of its own, since Metal copies these too.
            raw = value if isinstance(value, (bytes, bytearray)) else np.asarray(value).tobytes()
            given[index] = np.frombuffer(bytearray(raw), dtype=np.uint8)
        modes = {p.index: p for p in self.info.parameters if p.kind == "buffer"}
        for index, value in given.items():
            array, offset = value if isinstance(value, tuple) else (value, 0)
            if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
                raise TypeError(f"buffer {index} must be a contiguous numpy array")
            if not 0 <= offset < max(array.nbytes, 1):
                raise ValueError(f"buffer {index}: offset {offset} is outside of its {array.nbytes} bytes")
            mode = modes.get(index)
            if mode and not mode.read_only and not array.flags.writeable:
                raise ValueError(f"buffer {index} is written by the kernel but the array is read-only")
            binding = request.buffers[index]
            binding.address, binding.size = array.ctypes.data + offset, array.nbytes - offset
            binding.offset = offset
            binding.constant = bool(mode and mode.constant)
            binding.read_only = bool(mode is None or mode.read_only)
            kept.append(array)
        return kept

    def _fault(self, image: _Image, record: _Fault) -> Fault:
        file, line = record.file.decode(), record.line
        if not file:
            file, line = image.location(record.program_counter)
        return Fault(record.kind.decode(), record.message.decode(), self.info.name, file, line, record)


def compile(
    source: Path | str, include_dirs: Sequence[Path | str] = (), defines: Mapping[str, str] | None = None
) -> Library:
    """Compiles a .metal file (a Path) or Metal source (a str). Raises SourceError or CompileError."""
    flags = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    return Library(*build.preprocess(source, include_dirs, flags))
