"""The table of formats, against the gguf package and against its C++ view."""

import gguf
import pytest
import torch

from torch_qmm import _C, Format


def test_ids_and_sizes_are_those_of_the_gguf_package():
    for fmt in Format:
        kind = gguf.GGMLQuantizationType[fmt.name]
        assert int(fmt) == int(kind)
        assert (fmt.block_weights, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[kind]


def test_no_ggml_weight_format_is_missing():
    # Q8_1 and Q8_K hold activations, never weights; the integer types and F64 hold no weights of a product.
    left_out = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
    assert {kind.name for kind in gguf.GGMLQuantizationType} - left_out == {fmt.name for fmt in Format}


def test_the_cpp_table_is_the_same():
    assert _C.formats() == [(f.name, int(f), f.block_weights, f.block_bytes) for f in Format]


@pytest.mark.parametrize("value", [12, "Q4_K", "q4_k", Format.Q4_K])
def test_parse(value):
    assert Format.parse(value) is Format.Q4_K


@pytest.mark.parametrize("value", [4, "Q4", -1, "", 3.5])
def test_parse_of_an_unknown_format_names_the_known_ones(value):
    with pytest.raises(ValueError, match=r"format: got .*, want one of F32 \(0\), .*Q4_K \(12\)"):
        Format.parse(value)


def test_rows_are_whole_blocks():
    assert Format.Q4_K.row_bytes(512) == 288 and Format.Q4_K.row_weights(288) == 512
    with pytest.raises(ValueError, match="K: got 300, want a multiple of 256, the block of format Q4_K"):
        Format.Q4_K.row_bytes(300)
    with pytest.raises(ValueError, match="row bytes: got 100, want a multiple of 144, the block of format Q4_K"):
        Format.Q4_K.row_weights(100)
    with pytest.raises(ValueError, match="K: got -32"):
        Format.Q8_0.row_bytes(-32)


def test_plain_formats_name_their_dtype():
    plain = {f: f.torch_dtype for f in Format if f.torch_dtype is not None}
    assert plain == {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}
    assert Format.Q4_0.bits_per_weight == 4.5
