"""metalsim: runs Metal shaders on Linux, and reports what Metal forbids. README.md says what it does and does not."""

from .build import CompileError, available
from .library import BufferTraffic, Counters, Fault, Kernel, Library, compile
from .source import SourceError

__all__ = [
    "BufferTraffic",
    "CompileError",
    "Counters",
    "Fault",
    "Kernel",
    "Library",
    "SourceError",
    "available",
    "compile",
]
