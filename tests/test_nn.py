"""QuantTensor, QuantLinear and QuantEmbedding as users handle them: moving, casting, saving, loading."""

import copy
import io
import pickle

import pytest
import torch
from reference import product64, relative_l2
from torch import nn

from torch_qmm import Format, QuantEmbedding, QuantLinear, QuantTensor
from torch_qmm.bench.weights import random_weight


@pytest.fixture
def weight():
    return random_weight(Format.Q4_K, 24, 512)


@pytest.fixture
def layer(weight):
    return QuantLinear.from_quant_tensor(weight, torch.randn(24))


@pytest.fixture
def table(weight):
    return QuantEmbedding.from_quant_tensor(weight, padding_idx=3)


# QuantTensor


def test_tensor_says_what_it_is(weight):
    assert weight.shape == (24, 512) and weight.nbytes == 24 * 288 and len(weight) == 24
    text = "QuantTensor(Q4_K, shape=[24, 512], 6912 bytes, 4.5 bits per weight, device='cpu')"
    assert repr(weight) == text


def test_tensor_rows(weight):
    plain = weight.dequantize()
    assert torch.equal(weight[3:9].dequantize(), plain[3:9])
    assert weight[3:9].data.data_ptr() == weight.data[3:].data_ptr()
    assert torch.equal(weight[-1].dequantize(), plain[-1])
    assert torch.equal(weight[torch.tensor([5, 1])].dequantize(), plain[[5, 1]])
    assert len(weight[10:10]) == 0
    with pytest.raises(TypeError, match="index: got tuple"):
        weight[1, 2]
    with pytest.raises(IndexError):
        weight[24]
    with pytest.raises(TypeError, match="single packed row"):
        weight[0][0]
    with pytest.raises(TypeError, match="index: got bool"):
        weight[True]
    with pytest.raises(TypeError, match=r"index: got torch.bool \[24, 512\], want row numbers"):
        weight[torch.ones(24, 512, dtype=torch.bool)]
    assert len(weight[torch.arange(24) < 5]) == 5


def test_tensor_moves_and_pickles(weight):
    assert weight.to("meta").device.type == "meta" and weight.to("meta").shape == weight.shape
    again = pickle.loads(pickle.dumps(weight))
    assert again.format is Format.Q4_K and torch.equal(again.data, weight.data)
    with pytest.raises(TypeError, match=r"device: got torch.float16"):
        weight.to(torch.float16)


def test_tensor_refuses_what_is_not_packed():
    with pytest.raises(TypeError, match=r"data: got torch.float32, want a torch.uint8"):
        QuantTensor(torch.zeros(2, 144), Format.Q4_K)
    with pytest.raises(TypeError, match="data: got list"):
        QuantTensor([1, 2], Format.Q4_K)
    with pytest.raises(ValueError, match="row bytes: got 100, want a multiple of 144"):
        QuantTensor(torch.zeros(2, 100, dtype=torch.uint8), Format.Q4_K)
    with pytest.raises(ValueError, match="data: got a 0-d tensor"):
        QuantTensor(torch.zeros((), dtype=torch.uint8), Format.Q4_K)
    with pytest.raises(ValueError, match="format: got 'Q9'"):
        QuantTensor(torch.zeros(2, 144, dtype=torch.uint8), "Q9")


# Layers


def test_linear_is_a_linear(layer, weight):
    assert isinstance(layer, nn.Linear)
    assert (layer.in_features, layer.out_features) == (512, 24)
    assert layer.weight.dtype == torch.uint8 and not layer.weight.requires_grad
    assert repr(layer) == "QuantLinear(in_features=512, out_features=24, bias=True, format=Q4_K)"
    x = torch.randn(3, 512)
    assert relative_l2(layer(x), product64(x, weight) + layer.bias.double()) < 1e-6
    assert layer.weight.data_ptr() == weight.data.data_ptr()


def test_linear_keeps_the_dtype_of_x_and_computes_in_compute_dtype(weight):
    x = torch.randn(2, 512, dtype=torch.bfloat16)
    layer = QuantLinear.from_quant_tensor(weight, torch.randn(24), compute_dtype=torch.float32)
    got = layer(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, layer(x.float()).bfloat16())
    assert QuantLinear.from_quant_tensor(weight)(x).dtype == torch.bfloat16


def test_linear_with_float32_bias_takes_any_x(layer):
    for dtype in (torch.float16, torch.bfloat16):
        assert layer(torch.randn(2, 512, dtype=dtype)).dtype == dtype


def test_activations_cast_to_the_dtype_of_packed_bytes_are_refused(layer):
    for compute_dtype in (None, torch.float32):
        layer.compute_dtype = compute_dtype
        with pytest.raises(RuntimeError, match="x: got dtype uint8"):
            layer(torch.randn(2, 512).to(layer.weight.dtype))


def test_embedding_is_an_embedding(table, weight):
    assert isinstance(table, nn.Embedding)
    assert (table.num_embeddings, table.embedding_dim, table.padding_idx) == (24, 512, 3)
    ids = torch.tensor([[0, 23], [5, 5]])
    assert torch.equal(table(ids), weight.dequantize()[ids])
    assert repr(table) == "QuantEmbedding(24, 512, format=Q4_K, torch.float32)"


CASTS = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "to dtype": lambda m: m.to(torch.float16),
    "to both": lambda m: m.to("cpu", torch.bfloat16),
    "type": lambda m: m.type(torch.float16),
    "float": lambda m: m.float(),
}


@pytest.mark.parametrize("cast", CASTS)
def test_casts_leave_the_packed_bytes_alone(layer, table, weight, cast):
    before = weight.data.clone()
    model = CASTS[cast](nn.Sequential(table, layer))
    for module in model:
        assert module.weight.dtype == torch.uint8 and torch.equal(module.weight, before)
        assert isinstance(module.weight, nn.Parameter)
    dtype = layer.bias.dtype
    assert table.compute_dtype == dtype
    out = model(torch.tensor([1, 2]))
    assert out.dtype == dtype and torch.isfinite(out).all()


def test_explicit_compute_dtype_follows_a_cast(weight):
    layer = QuantLinear.from_quant_tensor(weight, compute_dtype=torch.float32).to(torch.bfloat16)
    assert layer.compute_dtype == torch.bfloat16


def test_moving_to_meta_and_back_keeps_format_and_shape(layer):
    layer.to("meta")
    assert layer.weight.is_meta and layer.quant_tensor.shape == (24, 512)
    layer.to_empty(device="cpu")
    assert layer.weight.dtype == torch.uint8 and layer.format is Format.Q4_K


def test_tied_layers_stay_tied(layer, table):
    layer.weight = table.weight
    model = nn.ModuleList([table, layer]).half()
    assert model[0].weight is model[1].weight


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), "save"])
def test_copies_keep_format_and_values(layer, table, copied):
    def save(module):
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    x = torch.randn(2, 512)
    for module, given in ((layer, x), (table, torch.tensor([1]))):
        again = (save if copied == "save" else copied)(module)
        assert again.format is module.format and torch.equal(again(given), module(given))
        assert again.weight.data_ptr() != module.weight.data_ptr()


def state_round_trip(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file)  # weights_only: a state dict holds plain tensors


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict(layer, table, assign):
    for module, empty in (
        (layer, QuantLinear(512, 24, format="Q4_K")),
        (table, QuantEmbedding(24, 512, format="Q4_K")),
    ):
        state = state_round_trip(module)
        assert empty.load_state_dict(state, assign=assign).missing_keys == []
        assert torch.equal(empty.weight, module.weight) and empty.weight.dtype == torch.uint8


def test_state_dict_survives_safetensors(layer, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(nn.Sequential(layer).state_dict(), tmp_path / "x.safetensors")
    again = nn.Sequential(QuantLinear(512, 24, format=Format.Q4_K))
    again.load_state_dict(safetensors.load_file(tmp_path / "x.safetensors"))
    assert torch.equal(again[0].weight, layer.weight)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_of_another_kind_is_refused(layer, assign):
    state = nn.Sequential(layer).state_dict()

    def load(*args, **kwargs):
        target = nn.Sequential(QuantLinear(*args, **kwargs))
        before = target[0].weight.clone()
        with pytest.raises(RuntimeError) as caught:
            target.load_state_dict(state, assign=assign)
        assert torch.equal(target[0].weight, before)  # nothing is written half
        return str(caught.value)

    # Q4_1 rows of 460.8 bytes don't exist; Q5_K and Q4_K differ in bytes, IQ4_NL and Q4_0 wouldn't
    assert "0: weight: got Q4_K [24, 512], want Q5_K [24, 512]" in load(512, 24, format="Q5_K")
    assert "0: weight: got Q4_K [24, 512], want Q4_K [25, 512]" in load(512, 25, format="Q4_K")
    assert "0: weight: got Q4_K [24, 512], want Q4_K [24, 256]" in load(256, 24, format="Q4_K")


def test_a_state_of_the_same_size_but_another_format_is_refused():
    state = QuantLinear(64, 8, format="Q4_0").state_dict()
    with pytest.raises(RuntimeError, match=r"got Q4_0 \[8, 64\], want IQ4_NL \[8, 64\]"):
        QuantLinear(64, 8, format="IQ4_NL").load_state_dict(state)


def test_a_float_state_is_refused(layer):
    plain = nn.Linear(512, 24).state_dict()
    with pytest.raises(RuntimeError, match=r"weight: got torch.float32 \[24, 512\], want packed uint8 of Q4_K"):
        layer.load_state_dict(plain, strict=False)


def test_layers_refuse_what_does_not_fit(weight):
    with pytest.raises(ValueError, match="K: got 100, want a multiple of 256"):
        QuantLinear(100, 4, format="Q4_K")
    with pytest.raises(ValueError, match="format: got 'nope'"):
        QuantEmbedding(100, 256, format="nope")
    with pytest.raises(ValueError, match=r"bias: got shape \[25\], want \[24\]"):
        QuantLinear.from_quant_tensor(weight, torch.zeros(25))
    with pytest.raises(ValueError, match=r"weight: got shape \[512\], want a matrix"):
        QuantLinear.from_quant_tensor(weight[0])
    with pytest.raises(ValueError, match=r"weight: got shape \[512\], want a matrix"):
        QuantEmbedding.from_quant_tensor(weight[0])


def test_a_fresh_layer_is_all_zero_and_has_a_zero_bias():
    layer = QuantLinear(64, 8, format="Q8_0", dtype=torch.bfloat16)
    layer.reset_parameters()
    assert layer.bias.dtype == torch.bfloat16
    assert torch.equal(layer(torch.randn(2, 64)), torch.zeros(2, 8))
    assert QuantLinear(64, 8, bias=False, format="Q8_0").bias is None


def test_a_trainable_bias_and_input_learn_through_a_packed_layer(layer):
    x = torch.randn(4, 512, requires_grad=True)
    layer(x).pow(2).mean().backward()
    assert layer.bias.grad.shape == (24,) and x.grad.abs().sum() > 0 and layer.weight.grad is None


BAD_STATES = {
    "a list": ([2, 8, 64], r"_extra_state: got \[2, 8, 64\], want tensor"),
    "no numbers": (torch.tensor([]), "_extra_state: got tensor"),
    "one number": (torch.tensor(2), "_extra_state: got tensor"),
    "no data": (torch.empty(3, device="meta"), "_extra_state: got tensor"),
    "nothing": (None, "_extra_state: got nothing that says what the bytes mean"),
}


@pytest.mark.parametrize("what", BAD_STATES)
@pytest.mark.parametrize("strict", [True, False])
def test_a_state_that_does_not_say_its_format_is_refused(what, strict):
    value, message = BAD_STATES[what]
    layer = QuantLinear(64, 8, format="IQ4_NL")
    state = QuantLinear(64, 8, format="IQ4_NL").state_dict() | {"_extra_state": value}
    if value is None:
        del state["_extra_state"]
    with pytest.raises(RuntimeError, match=message):
        layer.load_state_dict(state, strict=strict)


def test_a_state_with_a_weight_that_is_no_packed_tensor_is_refused():
    layer = QuantLinear(64, 8, format="Q4_0")
    with pytest.raises(RuntimeError, match=r"weight: got str, want packed uint8 of Q4_0 \[8, 64\]"):
        layer.load_state_dict(layer.state_dict() | {"weight": "x"})
    strided = torch.zeros(36, 8, dtype=torch.uint8).t()
    with pytest.raises(RuntimeError, match="weight: got a non-contiguous tensor"):
        layer.load_state_dict(layer.state_dict() | {"weight": strided}, assign=True)
    layer.load_state_dict(layer.state_dict() | {"weight": strided})  # copied, it is contiguous again


def test_state_dicts_do_not_depend_on_the_default_device():
    state = QuantLinear(64, 8, format="Q4_0").state_dict()
    with torch.device("meta"):
        layer = QuantLinear(64, 8, format="Q4_0")
        assert not layer.get_extra_state().is_meta
        layer.load_state_dict(state, assign=True)
        layer.half()
    assert torch.equal(layer.weight, state["weight"])


def test_more_that_layers_refuse(weight):
    with pytest.raises(ValueError, match=r"compute_dtype: got torch.float64, want None, torch.float32"):
        QuantLinear(64, 8, format="Q4_0", compute_dtype=torch.float64)
    with pytest.raises(ValueError, match="compute_dtype: got 'float32'"):
        QuantEmbedding(8, 64, format="Q4_0", compute_dtype="float32")
    with pytest.raises(ValueError, match="padding_idx: got 8, want None or a row of 8"):
        QuantEmbedding(8, 64, 8, format="Q4_0")
    assert QuantEmbedding(8, 64, -1, format="Q4_0").padding_idx == 7
    with pytest.raises(TypeError, match="weight: got Tensor, want a QuantTensor"):
        QuantLinear.from_quant_tensor(weight.data)
    with pytest.raises(TypeError, match="bias: got list, want a float tensor"):
        QuantLinear.from_quant_tensor(weight, [1.0] * 24)
    with pytest.raises(TypeError, match=r"bias: got torch.int64, want a float tensor"):
        QuantLinear.from_quant_tensor(weight, torch.zeros(24, dtype=torch.int64))
