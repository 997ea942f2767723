"""The operators as torch sees them: refusals, fake kernels, derivatives, torch.compile."""

import pytest
import torch
from reference import FORMATS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import torch_qmm
from torch_qmm import Format
from torch_qmm.bench.weights import random_weight

Q4_K = int(Format.Q4_K)
ops = torch.ops.qmm


def weight_bytes(N=6, K=512):
    return random_weight(Format.Q4_K, N, K).data


X, W = torch.zeros(2, 512), weight_bytes()
F16_BYTES = torch.zeros(9, dtype=torch.uint8)
BIASES = {
    "bias: got shape [5], want [6]": torch.zeros(5),
    "bias: got shape [1, 6], want [6]": torch.zeros(1, 6),
    "bias: got dtype float16, want that of x, float32": torch.zeros(6).half(),
    "bias: got device meta, want that of x, cpu": torch.zeros(6, device="meta"),
}
# what is wrong -> (arguments of a product, the message)
BAD_PRODUCTS = {
    "float64 x": ((X.double(), W, Q4_K), "x: got dtype float64, want float32, float16 or bfloat16"),
    "integer x": ((X.byte(), W, Q4_K), "x: got dtype uint8, want float32, float16 or bfloat16"),
    "complex x": ((X.to(torch.complex64), W, Q4_K), "x: got dtype complex64, want float32"),
    "0-d x": ((torch.tensor(1.0), W, Q4_K), "x: got a 0-d tensor, want [..., K] with K = 512"),
    "K": (
        (torch.zeros(2, 256), W, Q4_K),
        "x: got shape [2, 256], want [..., K] with K = 512, from the weight's",
    ),
    "float weight": ((X, W.float(), Q4_K), "weight: got dtype float32, want packed uint8 bytes"),
    "1-d weight": ((X, W[0], Q4_K), "weight: got shape [288], want [N, bytes per row]"),
    "3-d weight": ((X, W[None], Q4_K), "weight: got shape [1, 6, 288], want [N, bytes per row]"),
    "row bytes": ((X, W[:, :100].clone(), Q4_K), "weight: got rows of 100 bytes, want a multiple of 144"),
    "column slice": ((X, weight_bytes(6, 1024)[:, :288], Q4_K), "weight: got a non-contiguous tensor"),
    "transposed": ((torch.zeros(2, 256), torch.zeros(144, 6, dtype=torch.uint8).t(), Q4_K), "non-contiguous"),
    "misaligned": (
        (X, torch.zeros(6 * 288 + 1, dtype=torch.uint8)[1:].view(6, 288), Q4_K),
        "weight: got data at an address that is not a multiple of 2 bytes",
    ),
    "format": ((X, W, 4), "format: got id 4, want one of torch_qmm.Format"),
    "scales": ((X, W, Q4_K, torch.zeros(6)), "scales: got a tensor, want None: format Q4_K holds its scales"),
    "biases": ((X, W, Q4_K, None, torch.zeros(6)), "biases: got a tensor, want None: format Q4_K"),
    "weight elsewhere": ((X, W.to("meta"), Q4_K), "weight: got device meta, want that of x, cpu"),
}


def refused(message, function, *args, **kwargs):
    with pytest.raises(RuntimeError) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert message in text and "qmm::" in text, text


@pytest.mark.parametrize("what", BAD_PRODUCTS)
@pytest.mark.parametrize("op", ["mul_mv", "mul_mm", "linear"])
def test_a_product_refuses(op, what):
    args, message = BAD_PRODUCTS[what]
    refused(message, getattr(ops, op), *args)


@pytest.mark.parametrize("message", BIASES)
def test_linear_refuses_a_bias(message):
    refused(f"qmm::linear: {message}", ops.linear, X, W, Q4_K, None, None, BIASES[message])


@pytest.mark.parametrize("tile", [0, 48, -32, 128])
def test_mul_mm_refuses_a_tile(tile):
    refused(f"tile: got {tile}, want 32, 64 or None", ops.mul_mm, X, W, Q4_K, tile=tile)


def test_mul_mm_t_refuses():
    refused("grad: got shape [2, 5], want [..., N] with N = 6", ops.mul_mm_t, torch.zeros(2, 5), W, Q4_K)
    refused("grad: got dtype float64", ops.mul_mm_t, torch.zeros(2, 6).double(), W, Q4_K)
    refused("grad: got a 0-d tensor", ops.mul_mm_t, torch.tensor(0.0), W, Q4_K)


def test_embedding_and_dequantize_refuse():
    ids = torch.tensor([1])
    for bad in (ids.float(), ids.bool()):
        refused("ids: got dtype", ops.embedding, bad, W, Q4_K, dtype=torch.float32)
    refused("dtype: got float64, want float32", ops.embedding, ids, W, Q4_K, dtype=torch.float64)
    refused("dtype: got int32, want float32", ops.dequantize, W, Q4_K, dtype=torch.int32)
    refused("format: got id -1", ops.dequantize, W, -1, dtype=torch.float32)
    refused("weight: got dtype float32", ops.dequantize, W.float(), Q4_K, dtype=torch.float32)
    refused("weight: got shape []", ops.dequantize, W[0, 0], Q4_K, dtype=torch.float32)
    refused("rows of 287 bytes", ops.dequantize, W[:, 1:].clone(), Q4_K, dtype=torch.float32)


def test_a_plain_weight_must_be_aligned_to_its_type():
    misaligned = F16_BYTES[1:].view(1, 8)
    refused("not a multiple of 2 bytes", ops.dequantize, misaligned, int(Format.F16), dtype=torch.float32)


# Fake kernels see no data and no addresses; all else they refuse in the same words.
FAKE_CHECKS = [
    what for what in BAD_PRODUCTS if what not in ("column slice", "transposed", "misaligned", "weight elsewhere")
]


@pytest.mark.parametrize("what", FAKE_CHECKS)
@pytest.mark.parametrize("op", ["mul_mv", "mul_mm", "linear"])
def test_a_fake_product_refuses_in_the_same_words(op, what):
    args, message = BAD_PRODUCTS[what]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        refused(message, getattr(ops, op), *fake)


@pytest.mark.parametrize("message", [m for m in BIASES if "device" not in m])
def test_a_fake_linear_refuses_a_bias_in_the_same_words(message):
    with FakeTensorMode() as mode:
        x, weight, bias = (mode.from_tensor(t) for t in (X, W, BIASES[message]))
        refused(f"qmm::linear: {message}", ops.linear, x, weight, Q4_K, None, None, bias)


def test_fake_embedding_and_dequantize_refuse_in_the_same_words():
    with FakeTensorMode() as mode:
        weight, ids = mode.from_tensor(W), mode.from_tensor(torch.tensor([1]))
        refused(
            "ids: got dtype float32, want an integer", ops.embedding, ids.float(), weight, Q4_K, dtype=torch.float32
        )
        refused("dtype: got float64, want float32", ops.embedding, ids, weight, Q4_K, dtype=torch.float64)
        refused("dtype: got int32, want float32", ops.dequantize, weight, Q4_K, dtype=torch.int32)
        refused("scales: got a tensor", ops.dequantize, weight, Q4_K, ids, dtype=torch.float32)


def test_wrappers_refuse_bytes_without_a_format():
    for call in (torch_qmm.mul_mv, torch_qmm.mul_mm, torch_qmm.linear):
        with pytest.raises(TypeError, match="weight: got Tensor, want a QuantTensor"):
            call(X, W)
    with pytest.raises(TypeError, match="weight: got NoneType, want a QuantTensor"):
        torch_qmm.embedding(torch.tensor([1]), None)
    with pytest.raises(TypeError, match="weight: got Tensor, want a QuantTensor"):
        torch_qmm.dequantize(W)


def test_forward_mode_is_refused_and_not_silently_zero():
    weight = random_weight(Format.Q4_K, 6, 512)
    layer = torch_qmm.QuantLinear.from_quant_tensor(weight)
    for call in (lambda x: torch_qmm.linear(x, weight), lambda x: torch_qmm.mul_mv(x, weight), layer):
        with pytest.raises(NotImplementedError, match="x: got a dual tensor"):
            torch.func.jvp(call, (X,), (X + 1,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    x, bias, grad = torch.randn(2, 3, 512).to(dtype), torch.randn(6).to(dtype), torch.randn(2, 3, 6).to(dtype)
    opcheck(ops.mul_mv.default, (x, W, Q4_K))
    opcheck(ops.mul_mm.default, (x, W, Q4_K), {"tile": 64})
    opcheck(ops.linear.default, (x, W, Q4_K, None, None, bias))
    opcheck(ops.mul_mm_t.default, (grad, W, Q4_K))
    opcheck(ops.embedding.default, (torch.tensor([[1, 5]]), W, Q4_K), {"dtype": dtype})
    opcheck(ops.dequantize.default, (W, Q4_K), {"dtype": dtype})
    opcheck(ops.linear.default, (x.clone().requires_grad_(), W, Q4_K, None, None, bias.clone().requires_grad_()))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("M", [2, 20])
def test_gradients_are_those_of_the_unpacked_layer(fmt, M):
    weight = random_weight(fmt, 37, 512)
    plain = weight.dequantize().double()
    x, bias = torch.randn(M, 512, requires_grad=True), torch.randn(37, requires_grad=True)
    x64, bias64 = x.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    grad = torch.randn(M, 37)
    torch_qmm.linear(x, weight, bias).backward(grad)
    torch.nn.functional.linear(x64, plain, bias64).backward(grad.double())
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=1e-5, atol=1e-5 * float(x64.grad.abs().max()))
    torch.testing.assert_close(bias.grad.double(), bias64.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", [torch_qmm.mul_mv, torch_qmm.mul_mm], ids=lambda f: f.__name__)
def test_the_chosen_kernels_have_gradients_too(op):
    weight = random_weight(Format.Q8_0, 10, 64)
    x = torch.randn(3, 4, 64, dtype=torch.bfloat16, requires_grad=True)
    op(x, weight).float().sum().backward()
    want = weight.dequantize().sum(0).expand(3, 4, 64)
    torch.testing.assert_close(x.grad.float(), want, rtol=1e-2, atol=1e-2)


def test_second_derivatives():
    weight = random_weight(Format.Q8_0, 10, 64)
    x = torch.randn(3, 64, requires_grad=True)
    (first,) = torch.autograd.grad(torch_qmm.linear(x, weight).pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    w = weight.dequantize()
    torch.testing.assert_close(second, (2 * w.T @ w).sum(0).expand(3, 64), rtol=1e-4, atol=1e-4)


def test_only_what_is_asked_for_gets_a_gradient():
    weight = random_weight(Format.Q8_0, 10, 64)
    x, bias = torch.randn(3, 64), torch.randn(10, requires_grad=True)
    torch_qmm.linear(x, weight, bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((10,), 3.0))


def test_compile_without_graph_breaks_and_with_dynamic_batches():
    layer = torch_qmm.QuantLinear.from_quant_tensor(random_weight(Format.Q4_K, 64, 512), torch.randn(64))
    table = torch_qmm.QuantEmbedding.from_quant_tensor(random_weight(Format.Q6_K, 100, 512))

    def model(ids):
        return torch.nn.functional.silu(layer(table(ids))) * 2

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for shape in [(1, 1), (2, 3), (4, 33)]:
        ids = torch.randint(0, 100, shape)
        torch.testing.assert_close(compiled(ids), model(ids))


def test_compile_with_gradients():
    layer = torch_qmm.QuantLinear.from_quant_tensor(random_weight(Format.Q4_0, 64, 64), torch.randn(64))
    x = torch.randn(5, 64, requires_grad=True)
    compiled = torch.compile(lambda t: layer(torch.relu(layer(t))).pow(2).sum(), fullgraph=True)
    (got,) = torch.autograd.grad(compiled(x), x)
    (want,) = torch.autograd.grad(layer(torch.relu(layer(x))).pow(2).sum(), x)
    torch.testing.assert_close(got, want)


def test_gradients_over_several_panels():
    weight = random_weight(Format.Q4_0, 70001, 32)
    grad = torch.randn(3, 70001)
    want = grad.double() @ weight.dequantize().double()
    got = torch.ops.qmm.mul_mm_t(grad, weight.data, int(weight.format))
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_gradients_of_empty_products():
    for N, M in ((0, 3), (5, 0)):
        x = torch.randn(M, 64, requires_grad=True)
        weight = torch_qmm.QuantTensor(torch.zeros(N, 36, dtype=torch.uint8), Format.Q4_0)
        bias = torch.zeros(N, requires_grad=True)
        torch_qmm.linear(x, weight, bias).sum().backward()
        assert torch.equal(x.grad, torch.zeros(M, 64)) and torch.equal(bias.grad, torch.zeros(N))


def test_gradients_of_a_single_token_without_a_batch():
    weight = random_weight(Format.Q8_0, 6, 64)
    x, bias = torch.randn(64, requires_grad=True), torch.randn(6, requires_grad=True)
    torch_qmm.linear(x, weight, bias).sum().backward()
    assert torch.equal(bias.grad, torch.ones(6))
    torch.testing.assert_close(x.grad, weight.dequantize().sum(0))
