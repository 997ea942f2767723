"""Reading GGUF files: metadata, the tensor table, and tensors as views of the mapped file.

A file is untrusted input. Every count, length and offset is checked before it is used, so a damaged or
hostile file ends in a :class:`GGUFError` and in nothing else. Layout after the GGUF specification, versions 2
and 3, little-endian: header, metadata pairs, tensor table, padding, tensor data.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from .formats import Format
from .tensor import QuantTensor

__all__ = ["GGUFError", "GGUFFile", "RawType", "TensorInfo"]

MetadataValue = Any  # bool | int | float | str | numpy.ndarray | list[str] | list of these


class GGUFError(ValueError):
    """A file that is not valid GGUF, or a tensor that cannot be had from it.

    The message names the file, the metadata key or tensor, what came and what is wanted.
    """


class RawType(IntEnum):
    """ggml types that files may hold and this package has no use for; a listing still names them."""

    Q8_1 = 9
    Q8_K = 15
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28

    @property
    def block_weights(self) -> int:
        """Values in one block."""
        return _RAW_BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _RAW_BLOCKS[self][1]


_RAW_BLOCKS: dict[RawType, tuple[int, int]] = {
    RawType.Q8_1: (32, 36),
    RawType.Q8_K: (256, 292),
    RawType.I8: (1, 1),
    RawType.I16: (1, 2),
    RawType.I32: (1, 4),
    RawType.I64: (1, 8),
    RawType.F64: (1, 8),
}

_TYPES: dict[int, Format | RawType] = {int(t): t for enum in (Format, RawType) for t in enum if t < 1000}


@dataclass(frozen=True)
class TensorInfo:
    """One line of the tensor table.

    Attributes:
        name: the tensor's name in the file.
        format: its :class:`~torch_qmm.formats.Format`, or a :class:`RawType` that only a listing can use.
        shape: logical shape in torch's order, the packed dimension K last.
        offset: first byte of the data, counted from the start of its file.
        nbytes: bytes of the data.
        shard: index of the file that holds it, 0 if the model is one file.
    """

    name: str
    format: Format | RawType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    shard: int = 0


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_NESTING = 4
_MAX_ELEMENTS = 2**63 - 1
# What a kernel may ask of the first byte of a tensor; data at a worse place is copied when loaded.
_LOAD_ALIGNMENT = 16

# Older Pythons' mmap module lacks the name.
_LINUX_NORESERVE = 0x4000 if sys.platform == "linux" else 0

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _BOOL, _ARRAY = 8, 7, 9
_NUMBERS: dict[int, np.dtype] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# The fewest bytes a metadata pair (key, type, value), a tensor entry, a string and an array can take. A count
# is held against what the rest of the file could carry before anything is read or allocated by it.
_MIN_PAIR, _MIN_TENSOR, _MIN_STRING, _MIN_ARRAY = 13, 24, 8, 12


class _Cursor:
    """A position in the mapped file; every read is checked against the end of the file."""

    __slots__ = ("buf", "path", "pos", "size")

    def __init__(self, path: Path, buf: mmap.mmap):
        self.path, self.buf, self.size, self.pos = path, buf, len(buf), 0

    def error(self, where: str, reason: str) -> GGUFError:
        return GGUFError(f"{self.path}: {where}: {reason}")

    def need(self, n: int, where: str) -> int:
        """Claims the next ``n`` bytes and returns where they start."""
        start = self.pos
        if n > self.size - start:
            raise self.error(where, f"the file ends at byte {self.size}, want {n} bytes at {start}")
        self.pos = start + n
        return start

    def u32(self, where: str) -> int:
        return _U32.unpack_from(self.buf, self.need(4, where))[0]

    def u64(self, where: str) -> int:
        return _U64.unpack_from(self.buf, self.need(8, where))[0]

    def count(self, least: int, where: str) -> int:
        """A 64-bit count of things of at least ``least`` bytes each, all of which must fit in the file."""
        return self.check_count(self.u64(where), least, where)

    def check_count(self, n: int, least: int, where: str) -> int:
        left = self.size - self.pos
        if n * least > left:
            raise self.error(where, f"got a count of {n}, want at most {left // least} in {left} bytes")
        return n

    def string(self, where: str) -> str:
        n = self.u64(where)
        start = self.need(n, where)
        try:
            return self.buf[start : start + n].decode()
        except UnicodeDecodeError as e:
            raise self.error(where, f"got invalid UTF-8 ({e.reason} at byte {start + e.start})") from None

    def strings(self, n: int, where: str) -> list[str]:
        """``n`` strings. Vocabularies have some 10^5, so they are read in one flat loop."""
        buf, size, pos, unpack = self.buf, self.size, self.pos, _U64.unpack_from
        out: list[str] = []
        try:
            for _ in range(n):
                start = pos + 8
                end = start + unpack(buf, pos)[0]
                if end > size:
                    break
                out.append(buf[start:end].decode())
                pos = end
        except (struct.error, UnicodeDecodeError):
            pass
        self.pos = pos
        while len(out) < n:  # only at a fault, which the careful way then names
            out.append(self.string(f"{where}[{len(out)}]"))
        return out

    def numbers(self, kind: int, n: int, where: str) -> np.ndarray:
        dtype = _NUMBERS[kind]
        start = self.need(n * dtype.itemsize, where)
        values = np.frombuffer(self.buf, dtype, n, start).copy()
        if kind == _BOOL:
            if (values > 1).any():
                at = int((values > 1).argmax())
                raise self.error(where, f"got the byte {values[at]} at index {at}, want a bool: 0 or 1")
            return values.astype(bool)
        return values

    def value(self, kind: int, where: str, depth: int = 0) -> MetadataValue:
        if kind == _STRING:
            return self.string(where)
        if kind == _ARRAY:
            return self.array(where, depth + 1)
        if kind in _NUMBERS:
            return self.numbers(kind, 1, where)[0].item()
        raise self.error(where, f"got metadata type {kind}, want 0 to 12")

    def array(self, where: str, depth: int) -> MetadataValue:
        if depth > _MAX_NESTING:
            raise self.error(where, f"got arrays nested {depth} deep, want at most {_MAX_NESTING}")
        kind = self.u32(where)
        if kind == _STRING:
            return self.strings(self.count(_MIN_STRING, where), where)
        if kind in _NUMBERS:
            return self.numbers(kind, self.count(_NUMBERS[kind].itemsize, where), where)
        if kind == _ARRAY:
            n = self.count(_MIN_ARRAY, where)
            return [self.array(f"{where}[{i}]", depth + 1) for i in range(n)]
        raise self.error(where, f"got array element type {kind}, want 0 to 12")


@dataclass
class _Shard:
    """One mapped file.

    ``data`` is all its bytes. It and every view of it keep the map alive.
    """

    path: Path
    data: np.ndarray | None
    version: int
    alignment: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]


def _open_map(path: Path) -> mmap.mmap:
    """The file, mapped copy-on-write: tensors over it may be written to, the file never is."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(f"{path}: got a pipe or device, want a file, which can be mapped")
        if status.st_size == 0:
            raise GGUFError(f"{path}: got an empty file, want one that starts with {_MAGIC!r}")
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        # Without NORESERVE, Linux refuses a writable private map of a file larger than memory.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _LINUX_NORESERVE)
        return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _read_shard(path: Path, index: int) -> _Shard:
    buf = _open_map(path)
    try:
        cursor = _Cursor(path, buf)
        version = _read_version(cursor)
        n_tensors = cursor.u64("tensor count")
        n_pairs = cursor.count(_MIN_PAIR, "metadata count")
        metadata = _read_metadata(cursor, n_pairs)
        alignment = _read_alignment(cursor, metadata)
        tensors = _read_tensors(cursor, n_tensors, alignment, index)
    except BaseException:
        buf.close()
        raise
    return _Shard(path, np.frombuffer(buf, np.uint8), version, alignment, metadata, tensors)


def _read_version(cursor: _Cursor) -> int:
    start = cursor.need(len(_MAGIC), "magic")
    magic = cursor.buf[start : start + len(_MAGIC)]
    if magic != _MAGIC:
        raise cursor.error("magic", f"got {magic!r}, want {_MAGIC!r}")
    version = cursor.u32("version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in _VERSIONS:
            raise cursor.error("version", "got a big-endian file, want a little-endian one")
        raise cursor.error("version", f"got {version}, want 2 or 3")
    return version


def _read_metadata(cursor: _Cursor, n: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for i in range(n):
        key = cursor.string(f"key of metadata pair {i}")
        where = f"metadata {key!r}"
        if key in metadata:
            raise cursor.error(where, "got the key twice, want it once")
        metadata[key] = cursor.value(cursor.u32(where), where)
    return metadata


def _read_alignment(cursor: _Cursor, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error("metadata 'general.alignment'", f"got {alignment!r}, want a power of two")
    return alignment


def _read_tensors(cursor: _Cursor, n: int, alignment: int, shard: int) -> dict[str, TensorInfo]:
    cursor.check_count(n, _MIN_TENSOR, "tensor count")
    entries: dict[str, TensorInfo] = {}
    for i in range(n):
        name = cursor.string(f"name of tensor {i}")
        if name in entries:
            raise cursor.error(f"tensor {name!r}", "got the name twice, want it once")
        entries[name] = _read_tensor(cursor, name, shard)
    return _place_tensors(cursor, entries, alignment)


def _read_tensor(cursor: _Cursor, name: str, shard: int) -> TensorInfo:
    """One entry of the table; its offset still counts from the start of the data section."""
    where = f"tensor {name!r}"
    n_dims = cursor.u32(where)
    if not 1 <= n_dims <= _MAX_DIMS:
        raise cursor.error(where, f"got {n_dims} dimensions, want 1 to {_MAX_DIMS}")
    dims = [cursor.u64(where) for _ in range(n_dims)]
    if not 0 < prod(dims) <= _MAX_ELEMENTS:
        raise cursor.error(where, f"got dimensions {dims}, want each at least 1 and their product under 2^63")
    type_id = cursor.u32(where)
    offset = cursor.u64(where)
    kind = _TYPES.get(type_id)
    if kind is None:
        raise cursor.error(where, f"got ggml type {type_id}, want one of {sorted(_TYPES)}")
    if dims[0] % kind.block_weights:
        block = f"{kind.block_weights}, the block of {kind.name}"
        raise cursor.error(where, f"got rows of {dims[0]} weights, want a multiple of {block}")
    nbytes = prod(dims) // kind.block_weights * kind.block_bytes
    return TensorInfo(name, kind, tuple(reversed(dims)), offset, nbytes, shard)


def _place_tensors(cursor: _Cursor, entries: dict[str, TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """The table with offsets from the start of the file, once every tensor is known to lie in it, alone."""
    data_start = -(-cursor.pos // alignment) * alignment
    placed: dict[str, TensorInfo] = {}
    for name, info in entries.items():
        where = f"tensor {name!r}"
        if info.offset % alignment:
            raise cursor.error(where, f"got offset {info.offset}, want a multiple of {alignment}")
        offset = data_start + info.offset
        end = offset + info.nbytes
        if end > cursor.size:
            raise cursor.error(where, f"got bytes {offset} to {end}, want them inside the file of {cursor.size}")
        placed[name] = TensorInfo(name, info.format, info.shape, offset, info.nbytes, info.shard)
    in_order = sorted(placed.values(), key=lambda t: t.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            raise cursor.error(
                f"tensor {after.name!r}",
                f"got data from byte {after.offset}, want it after tensor {before.name!r}, "
                f"which ends at {before.offset + before.nbytes}",
            )
    return placed


_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def _read_shards(path: Path) -> list[_Shard]:
    """The file, or all files of the model that it is a part of, in order."""
    opened = _read_shard(path, 0)
    count = _split_number(opened, "split.count", 1)
    if count <= 1:  # as llama.cpp reads it: some files say 0
        return [opened]
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise GGUFError(
            f"{path}: metadata 'split.count': got {count!r}, want the file named as one part of as many, "
            "like name-00001-of-00003.gguf"
        )
    shards: list[_Shard] = []
    for i in range(count):
        shard_path = path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf")
        if not shard_path.exists():
            raise GGUFError(f"{path}: part {i + 1} of {count} is missing, want it at {shard_path}")
        shards.append(_read_shard(shard_path, i))
    _check_shards(shards)
    return shards


def _check_shards(shards: list[_Shard]) -> None:
    seen: dict[str, Path] = {}
    for i, shard in enumerate(shards):
        for key, want in (("split.no", i), ("split.count", len(shards))):
            if (got := _split_number(shard, key, None)) != want:
                raise GGUFError(f"{shard.path}: metadata {key!r}: got {got}, want {want} as in its name")
        for name in shard.tensors:
            if name in seen:
                raise GGUFError(f"{shard.path}: tensor {name!r}: got it also in {seen[name]}, want it once")
            seen[name] = shard.path
    total = _split_number(shards[0], "split.tensors.count", len(seen))
    if total != len(seen):
        raise GGUFError(
            f"{shards[0].path}: metadata 'split.tensors.count': got {total}, want {len(seen)}, "
            "the tensors of all parts together"
        )


def _split_number(shard: _Shard, key: str, default: int | None) -> int | None:
    value = shard.metadata.get(key, default)
    if value is not default and type(value) is not int:
        raise GGUFError(f"{shard.path}: metadata {key!r}: got {value!r}, want an integer")
    return value


class GGUFFile:
    """An open GGUF file, or all parts of one that was split.

    Opening parses the metadata and the tensor table and reads no tensor data. Tensors are views of the mapped
    file: loading one reads nothing until its bytes are used, and the system may drop and re-read those pages
    at will. They stay valid after :meth:`close`. Writing to a tensor changes memory only, never the file. A
    file may be deleted or renamed while tensors are in use; one that is overwritten in place changes the
    tensors, and one that is truncated ends the process with a bus error, as with any mapped file.

    Args:
        path: the file. Any part of a split model (``name-00002-of-00003.gguf``) opens all of it.

    Raises:
        GGUFError: the file, or another part, is damaged, missing or of a kind that is not supported.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._shards = _read_shards(self.path)
        self._tensors = {name: info for shard in self._shards for name, info in shard.tensors.items()}

    @property
    def paths(self) -> list[Path]:
        """The files, one a part."""
        return [shard.path for shard in self._shards]

    @property
    def version(self) -> int:
        """The GGUF version, 2 or 3."""
        return self._shards[0].version

    @property
    def alignment(self) -> int:
        """What tensor offsets are a multiple of, in bytes."""
        return self._shards[0].alignment

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(info.nbytes for info in self._tensors.values())

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """Key to value, of the first part: bool, int, float, str, a numpy array of numbers, or a list."""
        return MappingProxyType(self._shards[0].metadata)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Name to :class:`TensorInfo`, in the order of the file."""
        return MappingProxyType(self._tensors)

    def load(self, name: str) -> QuantTensor:
        """The tensor's packed rows: a view of the file, uint8 ``[..., N, row_bytes]``.

        Raises:
            GGUFError: no such tensor, it has one dimension, or its type is a :class:`RawType`.
            ValueError: the file is closed.
        """
        info = self._info(name)
        fmt = self._format(info)
        if len(info.shape) < 2:
            raise self._error(info, f"got shape {list(info.shape)}, want rows and columns; use load_float")
        data = self._bytes(info).view(*info.shape[:-1], fmt.row_bytes(info.shape[-1]))
        return QuantTensor(data, fmt)

    def load_float(self, name: str) -> torch.Tensor:
        """The values of an F32, F16 or BF16 tensor in its own dtype: a view of the file, of ``info.shape``.

        Raises:
            GGUFError: no such tensor, or its format is quantized.
            ValueError: the file is closed.
        """
        info = self._info(name)
        dtype = self._format(info).torch_dtype
        if dtype is None:
            raise self._error(info, f"got format {info.format.name}, want F32, F16 or BF16; use load")
        return self._bytes(info).view(dtype).view(info.shape)

    def items(self) -> Iterator[tuple[str, QuantTensor | torch.Tensor]]:
        """All tensors in the order of the file, one at a time: :meth:`load`, or for one dimension
        :meth:`load_float`.
        """
        for name, info in self._tensors.items():
            yield name, self.load(name) if len(info.shape) > 1 else self.load_float(name)

    def close(self) -> None:
        """Closes the file. Tensors loaded from it stay valid."""
        for shard in self._shards:
            shard.data = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, tensors={len(self._tensors)}, nbytes={self.nbytes})"

    def _error(self, info: TensorInfo, reason: str) -> GGUFError:
        return GGUFError(f"{self._shards[info.shard].path}: tensor {info.name!r}: {reason}")

    def _info(self, name: str) -> TensorInfo:
        try:
            return self._tensors[name]
        except KeyError:
            raise GGUFError(f"{self.path}: no tensor {name!r} among its {len(self._tensors)}") from None

    def _format(self, info: TensorInfo) -> Format:
        if isinstance(info.format, RawType):
            raise self._error(info, f"got type {info.format.name}, which can be listed but not loaded")
        return info.format

    def _bytes(self, info: TensorInfo) -> torch.Tensor:
        shard = self._shards[info.shard]
        if shard.data is None:
            raise ValueError(f"{shard.path}: the file is closed")
        # A tensor made of a numpy view has a storage of its own that ends where the tensor does: saved or pickled, it
        # takes its own size and not the file's. numpy holds on to the map; torch.frombuffer would not.
        data = torch.from_numpy(shard.data[info.offset : info.offset + info.nbytes])
        return data if info.offset % _LOAD_ALIGNMENT == 0 else data.clone()
