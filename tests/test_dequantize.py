"""dequantize and embedding: bit-exact with gguf-py, on every instruction set."""

import numpy as np
import pytest
import torch
from reference import FORMATS, dequantize, wild_weight

import torch_qmm
from torch_qmm import Format, QuantTensor
from torch_qmm.bench.weights import random_weight


def assert_same_bits(got: torch.Tensor, want: np.ndarray) -> None:
    """Equal bits, -0.0 and 0.0 told apart; any NaN stands for any other."""
    expected = torch.from_numpy(np.ascontiguousarray(want))
    nan = expected.isnan()
    assert torch.equal(got.isnan(), nan)
    integers = {4: torch.int32, 2: torch.int16}[got.element_size()]
    assert torch.equal(got.view(integers)[~nan], expected.to(got.dtype).view(integers)[~nan])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_float32_is_bit_exact_on_random_bytes(fmt, isa):
    for seed in range(3):
        weight = wild_weight(fmt, 64, 768, seed=seed)
        assert_same_bits(weight.dequantize(), dequantize(weight))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_the_float32_value_rounded_to_nearest_even(fmt, dtype, isa):
    weight = wild_weight(fmt, 64, 768, seed=7)
    assert_same_bits(weight.dequantize(dtype), dequantize(weight))


@pytest.mark.parametrize("fmt", [Format.Q4_0, Format.IQ4_NL], ids=lambda f: f.name)
def test_random_weights_reach_every_code(fmt):
    """So that a wrong entry of a codebook can't hide from the tests above."""
    weight = random_weight(fmt, 64, 256)
    scale = np.ascontiguousarray(weight.data.numpy().reshape(-1, 18)[:, :2]).view(np.float16).astype(np.float32)
    assert len(np.unique(np.rint(dequantize(weight).reshape(-1, 32) / scale))) == 16


@pytest.mark.parametrize("fmt", [Format.F32, Format.F16, Format.BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("K", [1, 3, 15, 17, 33])
def test_plain_formats_of_any_row_length(fmt, K, isa):
    weight = wild_weight(fmt, 5, K, seed=K)
    assert_same_bits(weight.dequantize(), dequantize(weight))


def test_stacks_of_matrices_and_single_rows():
    weight = random_weight(Format.Q4_K, 12, 256)
    stack = QuantTensor(weight.data.view(3, 4, -1), Format.Q4_K)
    assert torch.equal(stack.dequantize(), weight.dequantize().view(3, 4, 256))
    assert torch.equal(stack[1].dequantize(), weight.dequantize()[4:8])
    assert torch.equal(QuantTensor(weight.data[5], Format.Q4_K).dequantize(), weight.dequantize()[5])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_embedding_takes_the_right_rows(fmt, dtype, isa):
    weight = random_weight(fmt, 33, 256)
    ids = torch.tensor([[32, 0, 7], [7, 31, 1]])
    want = weight.dequantize(dtype)[ids]
    assert torch.equal(torch_qmm.embedding(ids, weight, dtype=dtype), want)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ],
)
def test_embedding_takes_ids_of_any_integer_dtype_shape_and_stride(dtype):
    weight = random_weight(Format.Q8_0, 100, 64)
    table = weight.dequantize()
    ids = torch.tensor([[3, 99, 0], [1, 2, 64]]).to(dtype)
    assert torch.equal(torch_qmm.embedding(ids, weight), table[ids.long()])
    assert torch.equal(torch_qmm.embedding(ids.t(), weight), table[ids.long().t()])
    assert torch.equal(torch_qmm.embedding(ids[0, 1], weight), table[99])
    assert torch_qmm.embedding(ids[:0], weight).shape == (0, 3, 64)


@pytest.mark.parametrize("bad", [-1, 100, 2**40])
def test_embedding_refuses_an_id_out_of_range(bad):
    weight = random_weight(Format.Q8_0, 100, 64)
    with pytest.raises(RuntimeError, match=rf"qmm::embedding: ids: got {bad} at position 2, want 0 <= id < 100"):
        torch_qmm.embedding(torch.tensor([1, 2, bad]), weight)
