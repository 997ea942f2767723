"""Saving what was loaded from a file: every tensor takes its own size, not the file's, and comes back the same."""

import io
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_model
from tiny_gguf import smollm2_path

from torch_qmm import QuantLinear, load_model
from torch_qmm.gguf import GGUFFile

IDS = torch.tensor([[1, 504, 3575, 282]])


def saved(thing) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def model():
    return load_model(smollm2_path())[0]


def logits(model):
    with torch.inference_mode():
        return model(IDS).logits


def parameter_bytes(model) -> int:
    return sum(p.nbytes for p in model.parameters())


def test_one_tensor_of_a_file_is_saved_alone():
    with GGUFFile(smollm2_path()) as file:
        weight, norm = file.load("blk.0.ffn_up.weight"), file.load_float("output_norm.weight")
    layer = QuantLinear.from_quant_tensor(weight)
    for thing, nbytes in ((weight, weight.nbytes), (layer.state_dict(), weight.nbytes), (norm, norm.nbytes)):
        assert len(saved(thing)) < nbytes + 5000
        assert len(pickle.dumps(thing)) < nbytes + 5000
    again = pickle.loads(pickle.dumps(weight))
    assert torch.equal(again.data, weight.data) and again.format is weight.format


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_state_of_a_loaded_model(dtype):
    model = load_model(smollm2_path(), dtype=dtype)[0]
    data = saved(model.state_dict())
    # a tied head is in the state dict twice and in the file once
    assert len(data) < 1.05 * parameter_bytes(model)
    other = load_model(smollm2_path(), dtype=dtype)[0]
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not torch.equal(logits(other), logits(model))
    other.load_state_dict(torch.load(io.BytesIO(data)))
    assert torch.equal(logits(other), logits(model))


def test_a_whole_loaded_model(model):
    data = saved(model)
    assert len(data) < 1.2 * parameter_bytes(model)
    again = torch.load(io.BytesIO(data), weights_only=False)
    assert torch.equal(logits(again), logits(model))
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_a_loaded_model_in_safetensors(model, tmp_path):
    save_model(model, str(tmp_path / "model.safetensors"))
    state = load_file(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size < 1.05 * parameter_bytes(model)
    assert torch.equal(state["model.layers.3.mlp.up_proj.weight"], model.model.layers[3].mlp.up_proj.weight)
