"""The simulated `mps` device: torch's own behaviour on it, against the CPU; skipped where a real one is there."""

import gc
import io
import os
import re
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from tests import metalsim


@pytest.fixture(autouse=True)
def device(mps: torch.device) -> torch.device:
    return mps


def close(got: torch.Tensor, want: torch.Tensor, **tolerance: float) -> None:
    assert got.device.type == "mps"
    torch.testing.assert_close(got.cpu(), want, **tolerance)


# ---- Making, viewing, copying.


def test_is_found_as_torch_finds_a_mac():
    assert torch.backends.mps.is_built() and torch.backends.mps.is_available() and torch.mps.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("mps")
    assert torch.backends.mps.get_name() and torch.backends.mps.get_core_count() > 0
    assert torch.backends.mps.is_macos_or_newer(14, 0)
    assert torch.mps.recommended_max_memory() > 1 << 30


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
)
def test_creation(dtype):
    for made in (
        torch.zeros(3, 4, dtype=dtype, device="mps"),
        torch.ones(3, 4, dtype=dtype, device="mps"),
        torch.full((3, 4), 1, dtype=dtype, device="mps"),
        torch.tensor([[0, 1], [1, 0]], dtype=dtype, device="mps"),
        torch.eye(3, device="mps").to(dtype),
    ):
        assert made.dtype == dtype and made.device == torch.device("mps", 0)
        assert made.cpu().device.type == "cpu"
    assert torch.arange(7, device="mps").tolist() == list(range(7))
    assert torch.linspace(0, 1, 5, device="mps").tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert torch.empty(0, 3, device="mps").shape == (0, 3)


def test_new_memory_is_not_zero():
    """As on a Mac, unwritten memory holds anything; here it is NaN, which shows."""
    assert torch.empty(5, device="mps").isnan().all()


@pytest.mark.parametrize("make", [lambda: torch.zeros(2, dtype=torch.float64), lambda: torch.zeros(2).double()])
def test_float64_is_refused(make):
    with pytest.raises(TypeError, match="float64"):
        make().to("mps")
    with pytest.raises(TypeError, match="float64"):
        torch.zeros(2, device="mps").double()


def test_there_is_one_device():
    with pytest.raises(RuntimeError, match="one mps device"):
        torch.zeros(2, device="mps:1")


def test_copies_in_every_direction():
    a = torch.randn(5, 7)
    b = a.to("mps")
    close(b, a)
    close(b.clone(), a)
    close(b.half(), a.half())
    close(torch.empty(7, 5, device="mps").copy_(a.T), a.T)
    target = torch.zeros(5, 7, dtype=torch.float16)
    target.copy_(b)
    assert torch.equal(target, a.half())
    close(b.to(torch.int32), a.to(torch.int32))
    close(torch.empty(3, 5, 7, device="mps").copy_(b), a.expand(3, 5, 7))
    assert torch.equal(b.to("cpu", non_blocking=True), a)


def test_views_share_memory_and_keep_offsets():
    a = torch.arange(60.0).reshape(3, 4, 5)
    b = a.to("mps")
    assert b[1, 2:].storage_offset() == 30 and b[1, 2:].data_ptr() - b.data_ptr() == 120
    for view in (
        lambda t: t[1:, ::2, 1:4],
        lambda t: t.permute(2, 0, 1),
        lambda t: t.view(12, 5)[::3],
        lambda t: t.reshape(5, 12).T,
        lambda t: t.unfold(2, 2, 2),
        lambda t: t.as_strided((2, 3), (7, 2), 5),
        lambda t: t.unsqueeze(1).expand(3, 6, 4, 5),
        lambda t: t.flatten()[7:].chunk(3)[1],
        lambda t: t.diagonal(dim1=0, dim2=1),
        lambda t: t.view(torch.int32),
        lambda t: torch.view_as_complex(t[..., :4].contiguous().view(3, 4, 2, 2)),
    ):
        close(view(b), view(a))
    b[1, 2:].fill_(-1)
    a[1, 2:].fill_(-1)
    b.view(-1)[3::7].mul_(2)
    a.view(-1)[3::7].mul_(2)
    close(b, a)


def test_resize_keeps_the_contents():
    t = torch.arange(4.0, device="mps")
    t.resize_(6)
    assert t[:4].tolist() == [0, 1, 2, 3]
    t[2:4].resize_(2, 1)
    with pytest.raises(RuntimeError):
        t.resize_(-1)
    out = torch.empty(0, device="mps")
    torch.add(torch.ones(3, device="mps"), 1, out=out)
    assert out.tolist() == [2, 2, 2]


def test_storages():
    t = torch.arange(6.0, device="mps")
    s = t.untyped_storage()
    assert s.device.type == "mps" and s.nbytes() == 24
    back = torch.empty(0, device="mps").set_(s, 2, (2, 2), (2, 1))
    assert back.tolist() == [[2, 3], [4, 5]]
    assert torch.empty(0).set_(s.cpu()).tolist() == t.tolist()
    alias = torch.mps._host_alias_storage(s)
    torch.empty(0).set_(alias)[0] = 9
    assert t[0].item() == 9
    with pytest.raises(RuntimeError):
        torch.empty(0, device="mps").set_(torch.zeros(3).untyped_storage())


def test_mixing_devices_is_refused():
    a, b = torch.ones(2, device="mps"), torch.ones(2)
    with pytest.raises(RuntimeError):
        a @ b
    close(a + torch.tensor(2.0), torch.full((2,), 3.0))  # 0-d CPU tensors may be mixed in


# ---- Everything else by the CPU.

OPERATIONS = {
    "matmul": lambda x: x @ x.T,
    "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(1).values,
    "topk": lambda x: x.topk(3).indices,
    "where": lambda x: torch.where(x > 0, x, -x),
    "index": lambda x: x[torch.tensor([2, 0, 1], device=x.device)],
    "boolean mask": lambda x: x[x > 0],
    "cat": lambda x: torch.cat([x, x[:2]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "split": lambda x: torch.cat(x.split(3, 1), 1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "norm": lambda x: x.norm(dim=1),
    "argmax": lambda x: x.argmax(1),
    "nonzero": lambda x: (x > 0).nonzero(),
    "gather": lambda x: x.gather(1, (x > 0).long()),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :3].repeat(2, 1)[None, :6].transpose(0, 1)[:6, :1].expand(6, 6, 3)),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :2, :3], bias=x[0, :1], padding=1),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None, :2, :3], stride=2),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], attn_mask=torch.ones(6, 6, device=x.device).tril().bool()
    ),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "embedding": lambda x: F.embedding(torch.tensor([1, 5], device=x.device), x),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "group_norm": lambda x: F.group_norm(x[None], 3),
    "gelu": lambda x: F.gelu(x),
    "unique": lambda x: x.round().unique(),
    "cdist": lambda x: torch.cdist(x, x),
    "histc": lambda x: torch.histc(x, 5, -2, 2),
    "foreach": lambda x: torch._foreach_add([x, x[0]], 1)[1],
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, (x > 0).long(), x),
    "int matmul": lambda x: (x * 3).int() @ (x * 3).int().T,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name):
    x = torch.randn(6, 8)
    close(OPERATIONS[name](x.to("mps")), OPERATIONS[name](x))


DIFFERENTIABLE = [
    "matmul", "softmax", "layer_norm", "conv2d", "conv_transpose2d", "attention", "gelu", "einsum", "index", "norm",
    "cat", "interpolate", "group_norm",
]  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient(name):
    a = torch.randn(6, 8, requires_grad=True)
    b = a.detach().to("mps").requires_grad_()
    want, got = OPERATIONS[name](a), OPERATIONS[name](b)
    weight = torch.randn_like(want)
    (want * weight).sum().backward()
    (got * weight.to("mps")).sum().backward()
    close(b.grad, a.grad)


def test_modules_and_optimizers_train_alike():
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x, y = torch.randn(12, 8).to(device), torch.arange(12).remainder(3).to(device)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for got, want in zip(train("mps"), train("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_recurrent_and_attention_layers():
    x = torch.randn(2, 5, 8)
    for layer in (
        torch.nn.LSTM(8, 4, batch_first=True),
        torch.nn.GRU(8, 4),
        torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0),
    ):
        with torch.no_grad():
            want = layer(x)
            got = layer.to("mps")(x.to("mps"))
        want, got = (r[0] if isinstance(r, tuple) else r for r in (want, got))
        close(got, want, rtol=1e-4, atol=1e-5)


def test_autocast():
    a = torch.randn(4, 4, device="mps")
    with torch.autocast("mps", dtype=torch.float16):
        assert (a @ a).dtype == torch.float16
    assert (a @ a).dtype == torch.float32


# ---- Seeds, files, events, memory.


def test_seeds():
    torch.manual_seed(7)
    a = torch.randn(5, device="mps")
    state = torch.mps.get_rng_state()
    b = torch.rand(5, device="mps")
    torch.mps.manual_seed(7)
    assert torch.equal(torch.randn(5, device="mps"), a)
    torch.mps.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="mps"), b)
    before = torch.get_rng_state()
    torch.randn(3, device="mps")
    assert torch.equal(torch.get_rng_state(), before), "drawing on mps must leave the CPU's generator alone"
    g = torch.Generator(device="mps").manual_seed(3)
    c = torch.randn(4, device="mps", generator=g)
    assert torch.equal(torch.randn(4, device="mps", generator=g.manual_seed(3)), c)
    assert not torch.equal(torch.randn(4, device="mps", generator=g), c)
    drop = F.dropout(torch.ones(1000, device="mps"), 0.5)
    assert 300 < (drop == 0).sum().item() < 700
    assert sorted(torch.randperm(20, device="mps").tolist()) == list(range(20))


def test_save_and_load():
    a = torch.randn(3, 4)
    file = io.BytesIO()
    torch.save({"a": a.to("mps"), "view": a.to("mps")[1:]}, file)
    for location, kind in ((None, "mps"), ("cpu", "cpu"), ("mps", "mps")):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["a"].device.type == kind
        assert torch.equal(loaded["a"].cpu(), a) and torch.equal(loaded["view"].cpu(), a[1:])
    model = torch.nn.Linear(3, 2).to("mps")
    twin = torch.nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.weight, model.weight.cpu())


def test_printing_and_numpy():
    t = torch.arange(3.0, device="mps")
    assert repr(t) == "tensor([0., 1., 2.], device='mps:0')"
    with pytest.raises(TypeError, match="mps"):
        t.numpy()
    assert float(t[2]) == 2 and bool(t[1]) and t.tolist() == [0, 1, 2]


def test_events():
    start, end = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    start.record()
    torch.ones(8, device="mps").add_(1)
    end.record()
    end.synchronize()
    assert start.query() and end.query() and start.elapsed_time(end) >= 0
    end.wait()
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.mps.Event().elapsed_time(end)
    generic = torch.Event(device="mps")
    generic.record()
    generic.synchronize()
    assert generic.query()
    torch.mps.synchronize()
    torch.accelerator.synchronize()


def test_memory_is_counted_and_limited():
    torch.mps.empty_cache()
    before = torch.mps.current_allocated_memory()
    t = torch.zeros(1 << 18, device="mps")
    assert torch.mps.current_allocated_memory() - before == 1 << 20
    view = t[5:]
    del t
    assert torch.mps.current_allocated_memory() - before == 1 << 20
    del view
    assert torch.mps.current_allocated_memory() == before
    torch.mps.set_per_process_memory_fraction(1e-9)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="MPS backend out of memory"):
            torch.zeros(1 << 20, device="mps")
    finally:
        torch.mps.set_per_process_memory_fraction(0.0)
    torch.zeros(1 << 20, device="mps")


def test_many_threads():
    want = torch.arange(64.0).reshape(8, 8)
    failures = []

    def work() -> None:
        try:
            for _ in range(20):
                x = want.to("mps")
                assert torch.equal((x @ x).cpu(), want @ want)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- Shaders.

SHADER = """
#include <metal_stdlib>
using namespace metal;
kernel void scale(device float* y, device const float* x, constant float& by, uint i [[thread_position_in_grid]]) {
  y[i] = x[i] * by;
}
kernel void add_row(device float* y, constant long& width, uint2 at [[thread_position_in_grid]]) {
  y[at.y * width + at.x] += float(at.y);
}
kernel void sizes(device uint* out, uint2 size [[threads_per_threadgroup]], uint2 at [[thread_position_in_grid]]) {
  if (at.x == 0 && at.y == 0) { out[0] = size.x; out[1] = size.y; }
}
kernel void store_half(device half* y, constant half& value, constant int* list, uint i [[thread_position_in_grid]]) {
  y[i] = value + half(list[i]);
}
kernel void beyond(device float* y, uint i [[thread_position_in_grid]]) { y[i + 1] = 0; }
"""


@pytest.fixture(scope="module")
def library(mps):
    return torch.mps.compile_shader(SHADER)


def test_compile_shader(library):
    assert sorted(n for n in dir(library)) == ["add_row", "beyond", "scale", "sizes", "store_half"]
    x = torch.randn(50, device="mps")
    y = torch.empty(40, device="mps")
    library.scale(y, x[5:45], 2.5)
    close(y, x.cpu()[5:45] * 2.5)
    assert library.scale.max_threads_per_threadgroup == 1024 and library.scale.thread_execution_width == 32
    m = torch.zeros(3, 5, device="mps")
    library.add_row(m, 5, threads=(5, 3), group_size=(5, 1))
    close(m, torch.arange(3.0)[:, None].expand(3, 5))
    h = torch.empty(3, dtype=torch.float16, device="mps")
    library.store_half(h, 0.5, [1, 2, 3], arg_casts={1: "fp16", 2: "int32"})
    assert h.tolist() == [1.5, 2.5, 3.5]


def test_compile_shader_refuses(library):
    y = torch.zeros(4, device="mps")
    with pytest.raises(SyntaxError, match="no_such_name"):
        torch.mps.compile_shader("kernel void f(device float* y) { y[0] = no_such_name; }")
    with pytest.raises(AttributeError, match="absent"):
        library.absent  # noqa: B018
    with pytest.raises(RuntimeError, match="mps device"):
        library.scale(y, torch.zeros(4), 1.0)
    with pytest.raises(RuntimeError, match="threads is undefined"):
        library.scale(1, 2, 3)
    with pytest.raises(TypeError, match="argument type"):
        library.scale(y, y, "two")
    with pytest.raises(RuntimeError, match="cast"):
        library.scale(y, y, 1.0, arg_casts="fp7")
    with pytest.raises(RuntimeError, match="Threadgroup"):
        library.scale(y, y, 1.0, threads=4096, group_size=2048)
    with pytest.raises(RuntimeError, match="compiled"):
        torch.mps.load_metallib(b"MTLB")
    library.scale(y, y, 1.0)
    torch.mps.synchronize()


def test_a_fault_is_raised_once_and_the_device_lives_on(library):
    y = torch.zeros(4, device="mps")
    library.beyond(y)
    with pytest.raises(RuntimeError, match=r"(?s)out of bounds.*kernel beyond.*thread \(3, 0, 0\).*:16"):
        torch.mps.synchronize()
    torch.mps.synchronize()
    assert (torch.ones(2, device="mps") + 1).tolist() == [2, 2]


def test_errors_that_kernels_report():
    source = """
    #include <c10/metal/error.h>
    kernel void check(device int* x, device c10::metal::ErrorMessages* errors, uint i [[thread_position_in_grid]]) {
      if (x[i] < 0) TORCH_REPORT_ERROR(errors, "negative value ", long(x[i]), " found");
    }"""
    library = torch.mps.compile_shader(source)
    library.check(torch.tensor([1, 2], dtype=torch.int32, device="mps"), error_buf_idx=1)
    torch.mps.synchronize()
    library.check(torch.tensor([1, -7], dtype=torch.int32, device="mps"), error_buf_idx=1)
    with pytest.raises(RuntimeError, match="negative value -7 found"):
        torch.mps.synchronize()


ORDER = """#include <metal_stdlib>
kernel void order(device metal::atomic_uint* count, device uint* places, uint i [[thread_position_in_grid]]) {
  places[metal::atomic_fetch_add_explicit(count, 1u, metal::memory_order_relaxed)] = i;
}"""


def test_settings_choose_the_order():
    library = torch.mps.compile_shader(ORDER)

    def run(**settings) -> list[int]:
        count, places = (torch.zeros(n, dtype=torch.int32, device="mps") for n in (1, 8))
        with metalsim.settings(**settings):
            library.order(count, places, threads=8)
        return places.tolist()

    for check in (True, False):
        assert run(check=check, order="fifo") == list(range(8))
        assert run(check=check, order="lifo") == list(range(7, -1, -1))
        shuffled = {seed: run(check=check, order="random", seed=seed) for seed in range(5)}
        assert all(sorted(places) == list(range(8)) for places in shuffled.values())
        assert len({tuple(places) for places in shuffled.values()}) > 1
        assert run(check=check, order="random", seed=3) == shuffled[3]


def test_nothing_leaks():
    def work() -> None:
        source = "kernel void fill(device int* x, uint i [[thread_position_in_grid]]) { x[i] = 3; }"
        library = torch.mps.compile_shader(source)
        x = torch.empty(8, dtype=torch.int32, device="mps")
        library.fill(x)
        event = torch.mps.Event(enable_timing=True)
        event.record()
        library.fill(x)
        event.synchronize()
        with pytest.raises(SyntaxError):
            torch.mps.compile_shader("nonsense")
        with pytest.raises(AttributeError):
            library.other  # noqa: B018
        assert x.add(1).tolist() == [4] * 8

    work()
    torch.mps.synchronize()
    gc.collect()
    before = metalsim.live_objects()
    for _ in range(3):
        work()
    torch.mps.synchronize()
    gc.collect()
    assert metalsim.live_objects() == before


@pytest.mark.slow
def test_torch_compile():
    def pointwise(x, y):
        return F.gelu(x) * torch.sigmoid(y) + torch.where(x > 0, x, y.exp())

    def reduction(x, y):
        return (x * y).sum(-1), F.softmax(x, -1)

    for function in (pointwise, reduction):
        x, y = torch.randn(33, 65), torch.randn(33, 65)
        with metalsim.record() as dispatches:
            got = torch.compile(function, fullgraph=True)(x.to("mps"), y.to("mps"))
            torch.mps.synchronize()
        assert dispatches, "inductor's own Metal kernel must have run"
        want = function(x, y)
        got, want = ([r] if torch.is_tensor(r) else r for r in (got, want))
        for g, w in zip(got, want, strict=True):
            close(g, w, rtol=1e-4, atol=1e-5)


# ---- An extension of our kind.


@pytest.fixture(scope="module")
def row_sums(mps):
    source = ROOT / "tests" / "metalsim" / "extension" / "row_sums.mm"
    metalsim.load_extension("row_sums", [source], flags=[metalsim.STABLE_ABI])
    return torch.ops.metalsim_example.row_sums


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 65), (17, 200), (0, 4)])
def test_extension(row_sums, rows, columns):
    x = torch.randn(rows, columns)
    close(row_sums(x.to("mps"), 1, 1.0), x.sum(1), rtol=1e-4, atol=1e-4)
    close(row_sums(x.to("mps"), 3, 0.5), (x**3).sum(1) * 0.5, rtol=1e-4, atol=1e-4)


def test_extension_on_offset_views_between_other_operators(row_sums):
    x = torch.randn(9, 40)
    b = x.to("mps")
    b.mul_(2)
    got = row_sums(b[4:8], 2, 1.0) + row_sums(b[:4], 1, 3.0)
    want = ((x[4:8] * 2) ** 2).sum(1) + x[:4].sum(1) * 6
    close(got, want, rtol=1e-4, atol=1e-4)


def test_extension_counts(row_sums):
    x = torch.randn(3, 65, device="mps")
    with metalsim.record() as dispatches:
        row_sums(x, 1, 1.0)
        torch.mps.synchronize()
    (one,) = dispatches
    assert one.kernel == "row_sums"
    assert one.counters.buffers[0].read_distinct == x.nbytes
    assert one.counters.buffers[1].written_issued == 12
    assert one.counters.threads == 3 * 64
    assert one.counters.barriers == 3 * 7


def test_extension_errors(row_sums):
    with pytest.raises(RuntimeError, match="contiguous float32 matrix"):
        row_sums(torch.zeros(3, 4, dtype=torch.float16, device="mps"), 1, 1.0)
    with pytest.raises(NotImplementedError):
        row_sums(torch.zeros(3, 4), 1, 1.0)


# ---- Installing.


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_program_of_the_readme():
    text = (ROOT / "tests" / "metalsim" / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    done = run(program + "\nassert x.device.type == 'mps'")
    assert done.returncode == 0 and "device='mps:0'" in done.stdout, done.stderr


def test_install_twice_and_after_torch_was_asked():
    code = """
import torch
assert not torch.backends.mps.is_available() and not torch.accelerator.is_available()
from tests import metalsim
assert metalsim.install() and metalsim.install()
assert torch.ones(3, device="mps").sum().item() == 3
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_install_without_clang_names_the_package():
    done = run("from tests import metalsim; metalsim.install()", METALSIM_CLANG="no-such-clang")
    assert "clang-19" in done.stderr.splitlines()[-1] and done.returncode == 1


def test_bad_settings_are_refused():
    done = run("from tests import metalsim; metalsim.install()", METALSIM_ORDER="sideways")
    assert done.returncode and "METALSIM_ORDER" in done.stderr and "sideways" in done.stderr
