"""The tests' own proof: each mutant breaks one thing in a copy of the code, and the tests named with it must notice.

Mutants of the kernels run the checker of test_kernels.py alone, so that only it has to be compiled anew; mutants of
the operators rebuild the extension; mutants of Python need no build.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest
from conftest import CACHE, ROOT

pytestmark = pytest.mark.slow

KERNELS = "csrc/cpu/kernels_impl.h"
FORMATS = "csrc/cpu/formats"
OPS = "csrc/cpu/ops.cpp"
CHECKER = ("tests/test_kernels.py::test_native_kernels_stay_inside_their_arrays",)


@dataclass(frozen=True)
class Mutant:
    """`old` is replaced by `new`, once, in the file `path`; one of `tests` must fail."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = CHECKER


MUTANTS = [
    # what packed bytes mean
    Mutant("codebook entry", f"{FORMATS}/legacy.h", "make_levels({-8, -7,", "make_levels({-7, -7,"),
    Mutant(
        "nibbles swapped",
        f"{FORMATS}/legacy.h",
        "sink(pick_low(codebook, nibbles), pick_high(codebook, nibbles), offset)",
        "sink(pick_high(codebook, nibbles), pick_low(codebook, nibbles), offset)",
    ),
    Mutant(
        "scale dropped", f"{FORMATS}/legacy.h", "sink(mul(d, from_i8(bytes_sub(q.lo", "sink((from_i8(bytes_sub(q.lo"
    ),
    Mutant("minimum dropped", f"{FORMATS}/k_quants.h", "set1(min.of[index])", "set1(0.0f * min.of[index])"),
    Mutant(
        "sub-block scale of the neighbour",
        f"{FORMATS}/iq.h",
        "signed_weights(d * kIq2Scales.of[scales >> 4], b,",
        "signed_weights(d * kIq2Scales.of[scales & 15], b,",
    ),
    Mutant("sign dropped", f"{FORMATS}/iq.h", "from_i8(bytes_negate_where(grid, signs))", "from_i8(grid)"),
    Mutant("ninth index bit", f"{FORMATS}/iq.h", "bytes_where(top[i], bytes_set1(1))", "bytes_where(0, bytes_set1(1))"),
    # the vector kernel
    Mutant("every token reads the first one", KERNELS, "x + m * x_stride + offset", "x + offset"),
    Mutant(
        "a row is skipped",
        KERNELS,
        "a.weight + r * a.row_bytes, a, &tail_x",
        "a.weight + (r > 1 ? r - 1 : r) * a.row_bytes, a, &tail_x",
    ),
    Mutant("the tail of a row is left out", KERNELS, "    if (a.K % kStep) {", "    if (a.K % kStep == 1) {"),
    Mutant("a second group of tokens", KERNELS, "group.y = args.y + m * args.y_stride", "group.y = args.y"),
    Mutant(
        "reads one step past the end",
        KERNELS,
        "W::kPlain ? blocks / kStep : blocks;",
        "W::kPlain ? (blocks + kStep - 1) / kStep : blocks;",
    ),
    # the operators
    Mutant(
        "bias left out", OPS, "row[n] += b[n];", "row[n] += 0;", ("tests/test_products.py::test_linear_adds_the_bias",)
    ),
    Mutant(
        "every panel unpacks the first rows",
        OPS,
        "bytes_of(weight)) + first * weight.size(1)",
        "bytes_of(weight)) + 0 * first",
        ("tests/test_products.py::test_more_rows_than_16_bits_hold",),
    ),
    Mutant(
        "backward of the first rows only",
        OPS,
        "column_of(g, first)",
        "column_of(g, 0)",
        ("tests/test_operators.py::test_gradients_over_several_panels",),
    ),
    Mutant(
        "id one past the table",
        OPS,
        "id[i] >= 0 && id[i] < N",
        "id[i] >= 0 && id[i] <= N",
        ("tests/test_dequantize.py::test_embedding_refuses_an_id_out_of_range",),
    ),
    Mutant(
        "crossover one token early",
        "csrc/rules.h",
        "tokens <= (is_grid",
        "tokens < (is_grid",
        ("tests/test_products.py",),
    ),
    Mutant(
        "alignment not checked",
        "csrc/checks.h",
        "address % weight_alignment(format) == 0",
        "address % 1 == 0",
        ("tests/test_operators.py",),
    ),
    Mutant(
        "a panel of the whole weight",
        "csrc/rules.h",
        "kCpuPanelBytes = 1 << 20",
        "kCpuPanelBytes = 1LL << 40",
        ("tests/test_memory.py",),
    ),
    # the layers
    Mutant(
        "casts reach the packed bytes",
        "torch_qmm/nn.py",
        "super()._apply(keep_packed, recurse)",
        "super()._apply(fn, recurse)",
        ("tests/test_nn.py",),
    ),
    Mutant(
        "state of another format",
        "torch_qmm/nn.py",
        "if not torch.equal(state.to(want), want):",
        "if False:",
        ("tests/test_nn.py",),
    ),
    Mutant(
        "fake kernel of the wrong width",
        "torch_qmm/ops.py",
        "return x.new_empty((*x.shape[:-1], out))",
        "return x.new_empty((*x.shape[:-1], width))",
        ("tests/test_operators.py::test_opcheck",),
    ),
    Mutant(
        "derivative without the weight",
        "torch_qmm/ops.py",
        "dx = torch.ops.qmm.mul_mm_t(grad, weight, ctx.format)",
        "dx = torch.ops.qmm.mul_mm_t(grad * 2, weight, ctx.format)",
        ("tests/test_operators.py",),
    ),
    # files and models
    Mutant(
        "permutation skipped",
        "torch_qmm/models.py",
        "return rows.view(heads, half, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)",
        "return rows.clone()",
        ("tests/test_models.py::test_logits_match_the_unpacked_model",),
    ),
    Mutant(
        "norms stored as w + 1",
        "torch_qmm/models.py",
        "values.float() - self.arch.norm_offset",
        "values.float()",
        ("tests/test_models.py::test_logits_match_the_unpacked_model",),
    ),
    Mutant(
        "a tensor past the end of the file",
        "torch_qmm/gguf.py",
        "if end > cursor.size:",
        "if end > 2 * cursor.size:",
        ("tests/test_gguf.py",),
    ),
    Mutant(
        "a tensor named twice",
        "torch_qmm/gguf.py",
        "if name in entries:",
        "if False:",
        ("tests/test_gguf.py",),
    ),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of everything that a build and the tests read."""
    tree = tmp_path_factory.mktemp("mutants") / "tree"
    tree.mkdir()
    for name in ("torch_qmm", "csrc", "tests", "build"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "Makefile"):
        shutil.copy2(ROOT / name, tree)
    (tree / ".cache").mkdir()
    if (CACHE / "models").exists():
        (tree / ".cache" / "models").symlink_to(CACHE / "models")
    return tree


def run(tree, *command):
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "QMM_KERNEL_CHECK_OPTIMISE": "-O0",
    }
    return subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(tree, mutant):
    path = tree / mutant.path
    original = path.read_text()
    assert mutant.old in original, f"{mutant.path} doesn't hold {mutant.old!r} any more"
    rebuild = mutant.path.endswith((".cpp", ".h")) and mutant.tests != CHECKER
    path.write_text(original.replace(mutant.old, mutant.new, 1))
    try:
        if rebuild:
            build = run(tree, "setup.py", "build_ext", "--inplace")
            assert build.returncode == 0, f"the mutant does not build:\n{build.stdout[-3000:]}{build.stderr[-3000:]}"
        tests = run(tree, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests)
    finally:
        path.write_text(original)
        if rebuild:
            shutil.copy2(next((ROOT / "torch_qmm").glob("_C*")), tree / "torch_qmm")
    # 1: tests ran and one failed; anything else is a mistake in the mutant
    assert tests.returncode == 1, f"no test noticed (pytest's exit {tests.returncode}):\n{tests.stdout[-3000:]}"
    if mutant.tests == CHECKER:
        assert "AssertionError: exit" in tests.stdout, f"the checker did not compile:\n{tests.stdout[-3000:]}"
