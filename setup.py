"""Builds torch_qmm._C against torch's stable ABI, so that one build serves every torch >= 2.10."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
CSRC = Path("csrc")
GENERATED = Path("build") / "generated"


def generate_grids() -> None:
    """Write the IQ codebooks, which are facts of the formats that the gguf package carries, to a header."""
    target = ROOT / GENERATED / "qmm_iq_grids.h"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, str(ROOT / CSRC / "generate_grids.py"), str(target)], check=True)


def extension(platform: str = sys.platform) -> CppExtension:
    sources = [*CSRC.glob("*.cpp"), *CSRC.glob("cpu/*.cpp")]
    link_args = []
    if platform == "darwin":
        sources += CSRC.glob("metal/*.mm")
        link_args += ["-framework", "Metal", "-framework", "Foundation"]
    return CppExtension(
        "torch_qmm._C",
        sorted(str(source) for source in sources),
        include_dirs=[str(ROOT / GENERATED)],
        define_macros=[
            ("TORCH_TARGET_VERSION", "0x020A000000000000"),  # torch 2.10: the oldest this build runs on
            ("Py_LIMITED_API", "0x030A0000"),  # Python 3.10, likewise
        ],
        # -ffp-contract=off: dequantize is bit-exact, so the compiler must not fuse a multiply and an add on its own.
        extra_compile_args=["-O3", "-std=c++20", "-fvisibility=hidden", "-ffp-contract=off"],
        extra_link_args=link_args,
        py_limited_api=True,
        depends=[str(header) for header in CSRC.rglob("*.h")],
    )


class BuildExt(BuildExtension):
    def build_extensions(self) -> None:
        generate_grids()
        if ".mm" not in self.compiler.src_extensions:  # torch adds it only where its own build has MPS
            self.compiler.src_extensions.append(".mm")
        super().build_extensions()


if __name__ == "__main__":  # tests/metalsim/mac_check.py asks for the extension's sources and flags
    setup(
        ext_modules=[extension()],
        cmdclass={"build_ext": BuildExt},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
