"""metalsim: runs Metal shaders on Linux, and reports what Metal forbids. README.md says what it does and does not."""

from .build import CompileError, available
from .device import STABLE_ABI, install, load_extension, record, settings
from .framework import Dispatch, NotInstalledError, live_objects
from .library import BufferTraffic, Counters, Fault, Kernel, Library, compile
from .source import SourceError
from .strict import strict

__all__ = [
    "STABLE_ABI",
    "BufferTraffic",
    "CompileError",
    "Counters",
    "Dispatch",
    "Fault",
    "Kernel",
    "Library",
    "NotInstalledError",
    "SourceError",
    "available",
    "compile",
    "install",
    "live_objects",
    "load_extension",
    "record",
    "settings",
    "strict",
]
