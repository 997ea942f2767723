"""Compiles a shader for the Metal framework: source on stdin, places on stdout, the compiler's words on stderr.

`compile_command.py checked|fast [-DNAME=VALUE ...]`. Run as a script, so that nothing but the compiler is imported.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def _compiler() -> ModuleType:
    """The package's build module, without the package itself, which needs numpy."""
    package = ModuleType("metalsim")
    package.__path__ = [str(HERE)]
    sys.modules["metalsim"] = package
    return importlib.import_module("metalsim.build")


def main() -> int:
    build = _compiler()
    checked = {"checked": True, "fast": False}[sys.argv[1]]
    try:
        text, file = build.preprocess(sys.stdin.read(), [], sys.argv[2:])
        path, program = build.compile_shader(text, file, checked)
    except (build.CompileError, build.SourceError) as error:
        print(error, file=sys.stderr)
        return 1
    rows = [("engine", build.engine()), ("shim", HERE / "shim"), ("image", path)]
    for kernel in program.kernels.values():
        rows += [("kernel", kernel.name), ("threads", kernel.max_threads)]
        for p in kernel.parameters:
            flags = (int(flag) for flag in (p.constant, p.read_only, p.conditional))
            rows.append(("parameter", p.kind, p.index, *flags))
    rows += [("constant", constant.name, constant.type) for constant in program.constants]
    for row in rows:
        print(*row, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
