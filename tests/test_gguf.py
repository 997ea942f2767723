"""The GGUF reader: what it reads, that it copies nothing, and that no file can do worse than a GGUFError."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_gguf import RawFile, array, entry, pair, run_python, smollm2_path, string, write_sample

from torch_qmm.formats import Format
from torch_qmm.gguf import GGUFError, GGUFFile, RawType

U32, STR, ARR, BOOL = 4, 8, 9, 7


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    return path, write_sample(path)


def test_metadata_of_every_type(sample):
    with GGUFFile(sample[0]) as file:
        meta = file.metadata
        assert file.version == 3
        assert file.alignment == 32
        assert meta["general.architecture"] == "llama"
        for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
            assert meta[f"number.{kind}"] == 7
            assert type(meta[f"number.{kind}"]) is int
        assert meta["number.float32"] == 0.5
        assert meta["number.float64"] == 0.1
        assert meta["flag"] is True
        assert meta["text"] == "grüße"
        assert meta["strings"] == ["a", "", "βγ"]
        assert meta["integers"].tolist() == [1, 2, -3]
        assert meta["integers"].dtype == np.int32
        assert meta["floats"].tolist() == [0.5, -1.5]
        assert meta["flags"].dtype == bool
        assert meta["flags"].tolist() == [True, False]


def test_tensors_match_what_was_written(sample):
    path, written = sample
    reader = gguf.GGUFReader(path)
    with GGUFFile(path) as file:
        assert list(file.tensors) == list(written)
        assert file.nbytes == sum(w.nbytes for w in written.values())
        for theirs in reader.tensors:
            info = file.tensors[theirs.name]
            assert info.format == theirs.tensor_type
            assert list(info.shape) == theirs.shape.tolist()[::-1]
            assert (info.offset, info.nbytes) == (theirs.data_offset, theirs.n_bytes)
        for name, loaded in file.items():
            data = loaded if isinstance(loaded, torch.Tensor) else loaded.data
            assert data.reshape(-1).view(torch.uint8).numpy().tobytes() == written[name].tobytes()


def test_load_gives_packed_rows(sample):
    with GGUFFile(sample[0]) as file:
        a = file.load("a.weight")
        assert (a.format, tuple(a.shape), tuple(a.data.shape)) == (Format.Q4_0, (4, 64), (4, 36))
        assert a.data.dtype == torch.uint8
        experts = file.load("experts.weight")
        assert (tuple(experts.shape), tuple(experts.data.shape)) == ((2, 2, 32), (2, 2, 34))
        assert file.load("plain.weight").format is Format.F16
        norm = file.load_float("norm.weight")
        assert (norm.dtype, tuple(norm.shape)) == (torch.float32, (8,))
        assert file.load_float("brain.weight").dtype == torch.bfloat16
        assert file.load_float("plain.weight").dtype == torch.float16


def test_tensors_are_views_that_outlive_the_file_and_never_write_to_it(tmp_path):
    path = tmp_path / "sample.gguf"
    write_sample(path)
    before = path.read_bytes()
    file = GGUFFile(path)
    one, two = file.load("a.weight"), file.load("a.weight")
    assert one.data.data_ptr() == two.data.data_ptr()
    file.close()
    file.close()
    path.unlink()
    one.data[0, 0] ^= 0xFF
    assert two.data[0, 0] == one.data[0, 0]
    write_sample(path)
    with GGUFFile(path) as again:
        again.load_float("norm.weight").zero_()
        again.load("a.weight").data.zero_()
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="closed"):
        file.load("a.weight")


def test_asking_for_the_wrong_tensor(sample, tmp_path):
    with GGUFFile(sample[0]) as file:
        with pytest.raises(GGUFError, match=r"no tensor 'nope' among its 6"):
            file.load("nope")
        with pytest.raises(GGUFError, match=r"'norm.weight': got shape \[8\], want rows and columns"):
            file.load("norm.weight")
        with pytest.raises(GGUFError, match=r"'a.weight': got format Q4_0, want F32, F16 or BF16"):
            file.load_float("a.weight")
    path = RawFile(entries=[entry("ids", [4, 1], kind=26)], data=bytes(32)).write(tmp_path / "raw.gguf")
    with GGUFFile(path) as file:
        assert file.tensors["ids"].format is RawType.I32
        for load in (file.load, file.load_float):
            with pytest.raises(GGUFError, match=r"'ids': got type I32, which can be listed but not loaded"):
                load("ids")


def test_raw_types_and_formats_have_the_blocks_of_gguf_py():
    # gguf-py gives Q8_1 a float32 sum where llama.cpp has had a half since 2024
    for kind in (k for k in RawType if k is not RawType.Q8_1):
        want = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        assert (kind.block_weights, kind.block_bytes) == want, kind.name
        assert gguf.GGMLQuantizationType(kind).name == kind.name


def test_small_alignment_is_copied_to_a_place_that_kernels_can_use(tmp_path):
    data = np.arange(4, dtype=np.float32).tobytes()
    for odd in range(4):
        path = RawFile(
            pairs=[pair("general.alignment", U32, u32(1)), pair("k", STR, string("x" * odd))],
            entries=[entry("t", [4])],
            data=data,
            alignment=1,
        ).write(tmp_path / f"{odd}.gguf")
        with GGUFFile(path) as file:
            assert file.load_float("t").tolist() == [0, 1, 2, 3]
            assert file.load_float("t").data_ptr() % 4 == 0


def test_version_2_and_a_file_without_tensors(tmp_path):
    path = RawFile(pairs=[pair("k", STR, string("v"))], version=2, alignment=1).write(tmp_path / "v2.gguf")
    with GGUFFile(path) as file:
        assert (file.version, dict(file.metadata), dict(file.tensors)) == (2, {"k": "v"}, {})


def test_arrays_may_nest(tmp_path):
    inner = array(U32, 2, u32(1) + u32(2))
    path = RawFile(pairs=[pair("k", ARR, array(ARR, 2, inner + inner))]).write(tmp_path / "n.gguf")
    with GGUFFile(path) as file:
        assert [x.tolist() for x in file.metadata["k"]] == [[1, 2], [1, 2]]


# --- untrusted input ---


def nested(depth: int) -> bytes:
    return array(U32, 0, b"") if depth == 1 else array(ARR, 1, nested(depth - 1))


HUGE = 2**63

FAULTS = {
    "empty": (b"", r"got an empty file"),
    "magic": (RawFile(magic=b"GGML"), r"magic: got b'GGML', want b'GGUF'"),
    "short magic": (b"GG", r"magic: the file ends at byte 2, want 4 bytes at 0"),
    "version": (RawFile(version=1), r"version: got 1, want 2 or 3"),
    "big-endian": (RawFile(version=3 << 24), r"version: got a big-endian file, want a little-endian"),
    "pair count": (
        RawFile(n_pairs=HUGE),
        r"metadata count: got a count of 9223372036854775808, want at most 0",
    ),
    "tensor count": (
        RawFile(n_entries=HUGE),
        r"tensor count: got a count of 9223372036854775808, want at most 0 in 8 bytes",
    ),
    "key length": (
        RawFile(pairs=[struct.pack("<Q", 2**64 - 1) + b"k" * 40]),
        r"key of metadata pair 0: the file ends at byte \d+, want 18446744073709551615 bytes at 32",
    ),
    "key twice": (
        RawFile(pairs=[pair("k", U32, u32(1))] * 2),
        r"metadata 'k': got the key twice, want it once",
    ),
    "key UTF-8": (
        RawFile(pairs=[pair("k", U32, u32(1)).replace(b"k", b"\xff")]),
        r"pair 0: got invalid UTF-8",
    ),
    "value type": (
        RawFile(pairs=[pair("k", 13, u32(1))]),
        r"metadata 'k': got metadata type 13, want 0 to 12",
    ),
    "string length": (
        RawFile(pairs=[pair("k", STR, struct.pack("<Q", 1000) + b"v")]),
        r"metadata 'k': the file ends at byte \d+, want 1000 bytes at 45",
    ),
    "string UTF-8": (
        RawFile(pairs=[pair("k", STR, string(b"ab\xc3"))]),
        r"metadata 'k': got invalid UTF-8 \(unexpected end of data at byte 47\)",
    ),
    "bool": (
        RawFile(pairs=[pair("k", BOOL, b"\x02")]),
        r"metadata 'k': got the byte 2 at index 0, want a bool",
    ),
    "bool in array": (
        RawFile(pairs=[pair("k", ARR, array(BOOL, 3, b"\x00\x01\x09"))]),
        r"metadata 'k': got the byte 9 at index 2, want a bool",
    ),
    "array type": (
        RawFile(pairs=[pair("k", ARR, array(99, 0, b""))]),
        r"metadata 'k': got array element type 99, want 0 to 12",
    ),
    "number array count": (
        RawFile(pairs=[pair("k", ARR, array(U32, HUGE, b""))]),
        r"metadata 'k': got a count of 9223372036854775808, want at most",
    ),
    "string array count": (
        RawFile(pairs=[pair("k", ARR, array(STR, HUGE, b""))]),
        r"metadata 'k': got a count of 9223372036854775808, want at most",
    ),
    "array array count": (
        RawFile(pairs=[pair("k", ARR, array(ARR, HUGE, b""))]),
        r"metadata 'k': got a count of 9223372036854775808, want at most",
    ),
    "string in array": (
        RawFile(pairs=[pair("k", ARR, array(STR, 2, string("a") + struct.pack("<Q", HUGE)))]),
        r"metadata 'k'\[1\]: the file ends",
    ),
    "UTF-8 in array": (
        RawFile(pairs=[pair("k", ARR, array(STR, 2, string("a") + string(b"\xff")))]),
        r"metadata 'k'\[1\]: got invalid UTF-8",
    ),
    "nesting": (
        RawFile(pairs=[pair("k", ARR, nested(6))]),
        r"metadata 'k'.*: got arrays nested 5 deep, want at most 4",
    ),
    "alignment 0": (
        RawFile(pairs=[pair("general.alignment", U32, u32(0))]),
        r"metadata 'general.alignment': got 0, want a power of two",
    ),
    "alignment 48": (
        RawFile(pairs=[pair("general.alignment", U32, u32(48))]),
        r"metadata 'general.alignment': got 48, want a power of two",
    ),
    "alignment type": (
        RawFile(pairs=[pair("general.alignment", STR, string("32"))]),
        r"metadata 'general.alignment': got '32', want a power of two",
    ),
    "name twice": (
        RawFile(entries=[entry("t", [8]), entry("t", [8], offset=32)], data=bytes(64)),
        r"tensor 't': got the name twice, want it once",
    ),
    "no dimensions": (
        RawFile(entries=[entry("t", []) + bytes(8)]),
        r"tensor 't': got 0 dimensions, want 1 to 4",
    ),
    "5 dimensions": (RawFile(entries=[entry("t", [1] * 5)]), r"tensor 't': got 5 dimensions, want 1 to 4"),
    "2^32 dimensions": (
        RawFile(entries=[entry("t", [8], n_dims=2**32 - 1)]),
        r"tensor 't': got 4294967295 dim",
    ),
    "zero dimension": (
        RawFile(entries=[entry("t", [8, 0])]),
        r"tensor 't': got dimensions \[8, 0\], want each",
    ),
    "product": (
        RawFile(entries=[entry("t", [2**32, 2**32])]),
        r"tensor 't': got dimensions \[4294967296, 4294967296\], want .* product under 2\^63",
    ),
    "ggml type": (
        RawFile(entries=[entry("t", [8], kind=4)]),
        r"tensor 't': got ggml type 4, want one of \[0, 1,",
    ),
    "row length": (
        RawFile(entries=[entry("t", [48, 2], kind=2)]),
        r"tensor 't': got rows of 48 weights, want a multiple of 32, the block of Q4_0",
    ),
    "offset alignment": (
        RawFile(entries=[entry("t", [8], offset=8)], data=bytes(64)),
        r"tensor 't': got offset 8, want a multiple of 32",
    ),
    "past the end": (
        RawFile(entries=[entry("t", [64])], data=bytes(255)),
        r"tensor 't': got bytes 64 to 320, want them inside the file of 319",
    ),
    "far offset": (
        RawFile(entries=[entry("t", [8], offset=2**64 - 32)], data=bytes(32)),
        r"tensor 't': got bytes \d+ to \d+, want them inside the file",
    ),
    "overlap": (
        RawFile(entries=[entry("b", [8], offset=32), entry("a", [16])], data=bytes(96)),
        r"tensor 'b': got data from byte \d+, want it after tensor 'a', which ends at",
    ),
    "split count": (
        RawFile(pairs=[pair("split.count", U32, u32(3))]),
        r"'split.count': got 3, want the file named as one part of as many",
    ),
    "split type": (
        RawFile(pairs=[pair("split.count", STR, string("3"))]),
        r"'split.count': got '3', want an integer",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault, tmp_path):
    content, message = FAULTS[fault]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.to_bytes())
    with pytest.raises(GGUFError, match=message) as error:
        GGUFFile(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(IsADirectoryError):
        GGUFFile(tmp_path)


def test_truncation_at_every_byte(sample, tmp_path):
    whole = sample[0].read_bytes()
    path = tmp_path / "cut.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(GGUFError):
            GGUFFile(path)
    path.write_bytes(whole)
    GGUFFile(path).close()


def test_flipped_bytes_give_a_valid_file_or_a_gguf_error(sample, tmp_path):
    whole = sample[0].read_bytes()
    with GGUFFile(sample[0]) as file:
        data_start = min(info.offset for info in file.tensors.values())
    rng = random.Random(20240607)
    path = tmp_path / "flip.gguf"
    refused = 0
    for _ in range(4000):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            damaged[rng.randrange(data_start)] = rng.choice((rng.randrange(256), 0, 0x7F, 0x80, 0xFF))
        path.write_bytes(damaged)
        try:
            with GGUFFile(path) as file:
                for _, tensor in file.items():
                    assert (tensor if isinstance(tensor, torch.Tensor) else tensor.data).sum() is not None
        except GGUFError:
            refused += 1
    assert 1000 < refused < 4000


# --- split models ---


def write_parts(folder: Path, *, count: int = 3, numbers: list[int] | None = None) -> list[Path]:
    paths = []
    for i in range(count):
        pairs = [
            pair("split.no", U32, u32(i if numbers is None else numbers[i])),
            pair("split.count", U32, u32(count)),
            pair("split.tensors.count", U32, u32(count)),
        ]
        if i == 0:
            pairs.append(pair("general.architecture", STR, string("llama")))
        data = np.full(8, i, np.float32).tobytes()
        raw = RawFile(pairs=pairs, entries=[entry(f"t{i}", [8])], data=data)
        paths.append(raw.write(folder / f"m-{i + 1:05d}-of-{count:05d}.gguf"))
    return paths


@pytest.mark.parametrize("opened", [0, 2])
def test_any_part_opens_the_whole_model(tmp_path, opened):
    paths = write_parts(tmp_path)
    with GGUFFile(paths[opened]) as file:
        assert file.paths == paths
        assert list(file.tensors) == ["t0", "t1", "t2"]
        assert [file.load_float(f"t{i}")[0].item() for i in range(3)] == [0, 1, 2]
        assert file.metadata["general.architecture"] == "llama"


def test_a_missing_part(tmp_path):
    paths = write_parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"part 2 of 3 is missing, want it at .*m-00002-of-00003.gguf"):
        GGUFFile(paths[0])


def test_parts_in_the_wrong_order(tmp_path):
    paths = write_parts(tmp_path, numbers=[0, 2, 1])
    with pytest.raises(GGUFError, match=r"m-00002-of-00003.gguf: metadata 'split.no': got 2, want 1"):
        GGUFFile(paths[0])


def test_a_part_of_another_model(tmp_path):
    paths = write_parts(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    write_parts(other, count=2)[1].replace(paths[1])
    with pytest.raises(GGUFError, match=r"m-00002-of-00003.gguf: metadata 'split.count': got 2, want 3"):
        GGUFFile(paths[0])


def test_a_tensor_in_two_parts(tmp_path):
    paths = write_parts(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes().replace(b"t2", b"t0"))
    with pytest.raises(GGUFError, match=r"m-00003-of-00003.gguf: tensor 't0': got it also in .*m-00001"):
        GGUFFile(paths[0])


def test_tensors_missing_from_the_parts(tmp_path):
    paths = write_parts(tmp_path)
    first = paths[0].read_bytes()
    key = string("split.tensors.count") + u32(U32)
    paths[0].write_bytes(first.replace(key + u32(3), key + u32(4)))
    with pytest.raises(GGUFError, match=r"'split.tensors.count': got 4, want 3"):
        GGUFFile(paths[1])


# --- speed and memory ---


def test_a_vocabulary_of_256k_is_read_whole(tmp_path):
    n = 256_000
    words = b"".join(string(f"token{i}") for i in range(n))
    path = RawFile(
        pairs=[
            pair("tokenizer.ggml.tokens", ARR, array(STR, n, words)),
            pair("tokenizer.ggml.merges", ARR, array(STR, n, words)),
            pair("tokenizer.ggml.scores", ARR, array(6, n, bytes(4 * n))),
        ]
    ).write(tmp_path / "vocab.gguf")
    with GGUFFile(path) as file:
        assert len(file.metadata["tokenizer.ggml.tokens"]) == len(file.metadata["tokenizer.ggml.scores"]) == n
        assert file.metadata["tokenizer.ggml.merges"][-1] == f"token{n - 1}"


def test_a_real_file_reads_like_gguf_py_says():
    with GGUFFile(smollm2_path()) as file:
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        assert len(file.tensors) == 272
        embedding = file.load("token_embd.weight")
        assert (embedding.format, tuple(embedding.shape)) == (Format.Q8_0, (49152, 576))


MEMORY_PROBE = """
import sys
from tiny_gguf import memory, reset_peak_memory
from torch_qmm.gguf import GGUFFile
reset_peak_memory()
before = memory("VmRSS")
with GGUFFile(sys.argv[1]) as file:
    opened = memory("VmHWM")
    for name in file.tensors:
        file.load(name).data.numpy().max()
print(opened - before, memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_opening_reads_no_tensor_and_peak_memory_is_the_size_of_the_file(tmp_path):
    size = 64 << 20
    path = tmp_path / "big.gguf"
    RawFile(entries=[entry(f"t{i}", [1 << 20, 2], offset=i * (8 << 20)) for i in range(8)]).write(path)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + size)
    opened, used = map(int, run_python(MEMORY_PROBE, path).split())
    assert opened < size / 8
    assert size * 0.9 < used < size * 1.15
