"""mul_mv, mul_mm and linear against float64 products of what gguf-py unpacks."""

import pytest
import torch
from reference import FORMATS, assert_close, magnitude64, product64, relative_l2

import torch_qmm
from torch_qmm import Format, QuantTensor
from torch_qmm.bench.weights import random_weight

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# relative error of a result: float32 arithmetic; or the rounding of the result (and, in the matrix kernel, of bfloat16
# weights) to x's own dtype
VECTOR_RTOL = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
MATRIX_RTOL = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 8e-3}


def check(op, weight, x, rtol):
    assert_close(op(x, weight), product64(x, weight), magnitude64(x, weight), rtol)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mul_mv(fmt, dtype, isa):
    for N, K, M in [
        (1, 256, 1),
        (3, 512, 2),
        (5, 768, 3),
        (33, 256, 7),
        (70, 1280, 8),
        (9, 256, 9),
        (8, 512, 17),
    ]:
        weight = random_weight(fmt, N, K, seed=M)
        check(torch_qmm.mul_mv, weight, torch.randn(M, K).to(dtype), VECTOR_RTOL[dtype])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mul_mm(fmt, dtype):
    for N, K, M in [(1, 256, 9), (33, 768, 12), (70, 512, 65)]:
        weight = random_weight(fmt, N, K, seed=M)
        check(torch_qmm.mul_mm, weight, torch.randn(M, K).to(dtype), MATRIX_RTOL[dtype])


@pytest.mark.parametrize("K", [32, 64, 96, 576, 1056])
@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.block_weights == 32], ids=lambda f: f.name)
def test_k_tails_of_32_weight_formats(fmt, K, isa):
    weight = random_weight(fmt, 7, K)
    for M in (1, 4, 40):
        check(torch_qmm.linear, weight, torch.randn(M, K), 1e-6)


@pytest.mark.parametrize("K", [1, 2, 15, 16, 17, 31, 33, 100, 577])
@pytest.mark.parametrize("fmt", [Format.F32, Format.F16, Format.BF16], ids=lambda f: f.name)
def test_k_tails_of_plain_formats(fmt, K, isa):
    weight = random_weight(fmt, 7, K)
    for M in (1, 4, 40):
        check(torch_qmm.linear, weight, torch.randn(M, K), 1e-6)


@pytest.mark.parametrize("M", [1, 8, 9, 64])
def test_linear_adds_the_bias(M):
    weight = random_weight(Format.Q4_K, 70, 512)
    for dtype in DTYPES:
        x, bias = torch.randn(M, 512).to(dtype), torch.randn(70).to(dtype)
        want = product64(x, weight) + bias.double()
        got = torch_qmm.linear(x, weight, bias)
        assert got.dtype == dtype and relative_l2(got, want) < MATRIX_RTOL[dtype]
        strided = torch.stack([bias, bias], dim=1)[:, 0]
        assert torch.equal(torch_qmm.linear(x, weight, strided), got)


@pytest.mark.parametrize("fmt", [Format.Q4_0, Format.Q4_K, Format.IQ3_XXS, Format.F32], ids=lambda f: f.name)
def test_a_token_has_the_same_bits_whatever_is_beside_it(fmt, isa):
    weight = random_weight(fmt, 37, 768)
    x = torch.randn(19, 768)
    alone = torch.cat([torch_qmm.mul_mv(x[m : m + 1], weight) for m in range(19)])
    for M in range(1, 20):
        assert torch.equal(torch_qmm.mul_mv(x[:M], weight), alone[:M])


def test_rows_do_not_depend_on_the_threads():
    weight = random_weight(Format.Q5_K, 1000, 512)
    x = torch.randn(3, 512)
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3, 7):
            torch.set_num_threads(n)
            results.append(torch_qmm.mul_mv(x, weight))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(r, results[0]) for r in results)


def views(x):
    """The same [4, 6, K] values behind every kind of stride."""
    K = x.shape[-1]
    offset = torch.zeros(x.numel() + 5, dtype=x.dtype)[5:].view_as(x)
    wide = torch.zeros(4, 6, 2 * K, dtype=x.dtype)
    return {
        "storage offset": offset.copy_(x),
        "every second column": wide[..., ::2].copy_(x),
        "left half of wider rows": wide.clone()[..., :K].copy_(x),
        "transposed batch": torch.zeros(6, 4, K, dtype=x.dtype).transpose(0, 1).copy_(x),
        "transposed columns": torch.zeros(4, K, 6, dtype=x.dtype).transpose(1, 2).copy_(x),
    }


@pytest.mark.parametrize("op", [torch_qmm.mul_mv, torch_qmm.mul_mm, torch_qmm.linear], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_give_what_their_copies_give(op, dtype):
    weight = random_weight(Format.Q4_1, 20, 96)
    x = torch.randn(4, 6, 96).to(dtype)
    want = op(x.contiguous(), weight)
    for name, view in views(x).items():
        if op is not torch_qmm.mul_mv:  # the order in which a GEMM adds up may depend on where x lies in memory
            torch.testing.assert_close(op(view, weight), want, msg=name)
        else:
            assert torch.equal(op(view, weight), want), name


@pytest.mark.parametrize("op", [torch_qmm.mul_mv, torch_qmm.mul_mm, torch_qmm.linear], ids=lambda f: f.__name__)
def test_batches_of_any_rank(op):
    weight = random_weight(Format.Q6_K, 5, 256)
    x = torch.randn(2, 3, 4, 5, 256)
    rows = product64(x.reshape(-1, 256), weight)
    assert relative_l2(op(x, weight), rows.view(2, 3, 4, 5, 5)) < 1e-6
    single = op(x[0, 0, 0, 0], weight)
    assert single.shape == (5,) and relative_l2(single, rows[0]) < 1e-6
    broadcast = x[:1, :1, :1].expand(2, 3, 4, 5, 256)
    assert relative_l2(op(broadcast, weight), product64(broadcast, weight)) < 1e-6


@pytest.mark.parametrize("op", [torch_qmm.mul_mv, torch_qmm.mul_mm, torch_qmm.linear], ids=lambda f: f.__name__)
def test_empty_sizes(op):
    weight = random_weight(Format.Q4_0, 6, 64)
    assert op(torch.randn(0, 64), weight).shape == (0, 6)
    assert op(torch.randn(3, 0, 64), weight).shape == (3, 0, 6)
    no_rows = QuantTensor(torch.empty(0, 36, dtype=torch.uint8), Format.Q4_0)
    assert op(torch.randn(2, 64), no_rows).shape == (2, 0)
    no_columns = QuantTensor(torch.empty(6, 0, dtype=torch.uint8), Format.Q4_0)
    assert torch.equal(op(torch.randn(2, 0), no_columns), torch.zeros(2, 6))


@pytest.mark.parametrize("M", [1, 8, 9, 33])
@pytest.mark.parametrize("dtype, outlier", [(torch.float32, 1e5), (torch.float16, 6e4), (torch.bfloat16, 3e38)])
def test_no_finite_activation_turns_into_inf_or_nan(dtype, outlier, M):
    K = 512
    for fmt in FORMATS:
        weight = random_weight(fmt, 40, K)
        quiet = QuantTensor(weight.data.clone(), fmt)
        x = torch.zeros(M, K, dtype=dtype)
        x[M // 2, 100] = outlier
        # a product that float64 can hold in the result's dtype must be finite
        want = product64(x, quiet)
        representable = want.abs() < torch.finfo(dtype).max
        for op in (torch_qmm.mul_mv, torch_qmm.mul_mm, torch_qmm.linear):
            got = op(x, quiet)
            assert torch.isfinite(got[representable]).all(), (fmt.name, op.__name__)
            assert relative_l2(got[representable], want[representable]) < MATRIX_RTOL[dtype], (
                fmt.name,
                op.__name__,
            )


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("M", [3, 12])
def test_nan_and_inf_stay_in_their_own_token(fmt, M):
    weight = random_weight(fmt, 10, 256)
    x = torch.randn(M, 256)
    clean = torch_qmm.linear(x, weight)
    dirty = x.clone()
    dirty[1, 5], dirty[2, 250] = torch.nan, torch.inf
    got = torch_qmm.linear(dirty, weight)
    assert got[1].isnan().all()
    w = weight.dequantize()[:, 250]
    assert not torch.isfinite(got[2]).any()
    assert torch.equal(got[2].isnan(), w == 0)
    rest = [m for m in range(M) if m not in (1, 2)]
    assert torch.equal(got[rest], clean[rest])


def test_more_rows_than_16_bits_hold():
    weight = random_weight(Format.Q4_0, 70001, 32)
    x = torch.randn(2, 32)
    check(torch_qmm.mul_mv, weight, x, 1e-6)
    check(torch_qmm.mul_mm, weight, x.repeat(20, 1), 1e-6)
    last = torch.tensor([70000, 32768, 65536])
    assert torch.equal(torch_qmm.embedding(last, weight), weight.dequantize()[last])


@pytest.mark.parametrize("tile", [32, 64])
def test_both_tiles_are_accepted_and_change_nothing_on_the_cpu(tile):
    weight = random_weight(Format.Q4_K, 50, 256)
    x = torch.randn(70, 256)
    check(lambda x, w: torch_qmm.mul_mm(x, w, tile=tile), weight, x, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_linear_takes_the_vector_kernel_for_few_tokens_and_the_matrix_kernel_for_more(fmt, dtype):
    """The two add up in different orders, so what is left of a sum that cancels tells which one ran."""
    grid = fmt.name.startswith(("IQ1", "IQ2", "IQ3"))
    limit = 8 if dtype == torch.bfloat16 else 16 if grid else 24
    half = random_weight(fmt, 128, 768).data
    weight = QuantTensor(torch.cat([half, half], dim=1), fmt)
    for M in (1, limit, limit + 1, limit + 40):
        x = 1000 * torch.randn(M, 768)
        x = torch.cat([x, -x], dim=1).to(dtype)
        vector, matrix = torch_qmm.mul_mv(x, weight), torch_qmm.mul_mm(x, weight)
        assert not torch.equal(vector, matrix)
        assert torch.equal(torch_qmm.linear(x, weight), vector if limit >= M else matrix), M
