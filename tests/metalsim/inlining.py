"""Checks in an object file that every simdgroup operation and barrier stands, inlined, in a kernel's entry.

The engine tells places apart by the address of a call. In a function that was not inlined (because it calls itself, or
says `noinline`) one address would stand for several places.
"""

import struct
from collections import defaultdict
from pathlib import Path

_PLACES = {
    "metalsim_simd_exchange",
    "metalsim_simd_barrier",
    "metalsim_group_barrier",
    "metalsim_matrix_operation",
    "metalsim_enter_loop",
}
_SYMBOLS, _RELOCATIONS = 2, 4  # section types


def _name(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _references(path: Path) -> dict[str, set[str]]:
    """By section: the symbols and sections that its code refers to. For 64-bit little-endian ELF files."""
    data = path.read_bytes()
    offset, size, count, names_at = struct.unpack_from("<Q10xHHH", data, 40)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    contents = [data[s[4] : s[4] + s[5]] for s in sections]
    names = [_name(contents[names_at], s[0]) for s in sections]
    symbols: list[str] = []
    for section, content in zip(sections, contents, strict=True):
        if section[1] == _SYMBOLS:
            for name, _, _, home, _, _ in struct.iter_unpack("<IBBHQQ", content):
                own = names[home] if 0 < home < count else ""
                symbols.append(own if own.startswith(".text") else _name(contents[section[6]], name))
    references = defaultdict(set)
    for section, content in zip(sections, contents, strict=True):
        if section[1] == _RELOCATIONS:
            for _, info, _ in struct.iter_unpack("<QQq", content):
                references[names[section[7]]].add(symbols[info >> 32])
    return references


def function_with_operation(path: Path) -> str | None:
    """The mangled name of a function that lets lanes meet and is called from a kernel without being inlined."""
    references = _references(path)
    entries = [name for name in references if name.startswith(".text") and "8metalsim5Entry" in name]
    seen, left = set(entries), list(entries)
    while left:
        for target in references[left.pop()]:
            if target in seen or not target.startswith(".text"):
                continue
            if references[target] & _PLACES:
                return target.removeprefix(".text.")
            seen.add(target)
            left.append(target)
    return None
