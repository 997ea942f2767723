"""The Mac check: compiles the extension for arm64 macOS and looks up its symbols in torch's own macOS wheels.

`python -m tests.metalsim.mac_check` checks what setup.py builds on a Mac, and the example extension, for each torch in
TORCH_VERSIONS.
torch's headers and libraries come from its macOS wheels, the C library's headers and symbols from the ziglang wheel,
libc++'s headers from Debian's libc++-19-dev, Foundation's and Metal's from ./framework (see README). What it cannot
show: that the linker and frameworks of a real Mac agree, and anything about running.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "mac"
TORCH_VERSIONS = ("2.10.0", "2.13.0")  # the oldest that we support, and the newest that the tests run with
ZIGLANG = "0.17.1"
PYOBJC_METAL = "12.2.2"
CLANG, NM = "clang++-19", "llvm-nm-19"
LIBCXX = Path("/usr/lib/llvm-19/include/c++/v1")
PLATFORMS = ("macosx_14_0_arm64", "macosx_11_0_arm64")

# Symbols of Apple's frameworks and of the C++ and Objective-C runtimes, whose libraries we have no copy of. The
# selectors and classes themselves are held against Apple's by the headers' own test.
RUNTIME = re.compile(
    r"_OBJC_(CLASS|METACLASS)_\$_(NS|MTL|MPS)\w+|_objc_\w+|___objc_\w+|_MTL\w+|_NS\w+|___CFConstantStringClassReference"
    r"|__Z(N|NK|NKR|TV|TI|TS|St|GVN)*St3__1\w+|__ZN?K?St\w+|__ZT[ISV](St|N10__cxxabiv1)\w*|__ZT[ISV][a-zPK]+"
    r"|__ZTTNSt3__1\w+|__Z(nw|na|dl|da)\w+|__ZSt\w+|___cxa_\w+|___gxx_personality_v0|___dso_handle|__Unwind_\w+"
    r"|__?Py_?[A-Z]\w+"
)


class CheckError(Exception):
    """The sources would not build or load on a Mac."""


class NotAvailable(Exception):  # noqa: N818
    """Something that the check needs is not on this machine; the text says what and where it comes from."""


def _wheel(package: str, version: str, platforms: Sequence[str] = ()) -> Path:
    """The wheel's file, from the cache or the package index."""
    folder = CACHE / f"{package}-{version}"
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as part:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += [word for platform in platforms for word in ("--platform", platform)]
        if platforms:
            command += ["--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]
        done = subprocess.run(
            [*command, "--dest", part, f"{package}=={version}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise NotAvailable(f"pip could not fetch {package} {version} from the package index: {reason[0]}")
        folder.mkdir(exist_ok=True)
        wheel = next(Path(part).glob("*.whl"))
        wheel.replace(folder / wheel.name)
        return folder / wheel.name


def _unpacked(wheel: Path, wanted: str) -> Path:
    """The folder with the files of a wheel whose names match, unpacked once."""
    folder = wheel.parent / "files"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=wheel.parent) as part:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if re.fullmatch(wanted, name)]
                archive.extractall(part, names)
            shutil.move(part, folder)
            Path(part).mkdir()  # for the context manager to remove
    return folder


def torch_files(version: str) -> Path:
    return _unpacked(_wheel("torch", version, PLATFORMS), r"torch/(include/.*|lib/[^/]*\.dylib)") / "torch"


def darwin_files() -> Path:
    wanted = r"ziglang/lib/libc/(include/any-darwin-any|darwin)/.*"
    return _unpacked(_wheel("ziglang", ZIGLANG), wanted) / "ziglang" / "lib" / "libc"


def metal_metadata() -> Path:
    """Apple's names and values of the Metal framework, as the pyobjc project records them."""
    wheel = _wheel("pyobjc-framework-Metal", PYOBJC_METAL, ("macosx_10_9_universal2",))
    return _unpacked(wheel, r"Metal/_metadata\.py") / "Metal" / "_metadata.py"


def need_tools() -> None:
    for tool, package in ((CLANG, "clang-19"), (NM, "llvm-19")):
        if not shutil.which(tool):
            raise NotAvailable(f"{tool} is missing: install the package {package}")
    if not LIBCXX.is_dir():
        raise NotAvailable(f"the headers of libc++ are missing: install the package libc++-19-dev ({LIBCXX})")


def compile_for_mac(source: Path, torch: Path, out: Path, flags: Sequence[str] = ()) -> None:
    """Compiles one file to an arm64 macOS object; every warning is an error, so that an unknown selector is one."""
    language = "objective-c++" if source.suffix == ".mm" else "c++"
    command = [
        CLANG, "--target=arm64-apple-macos14", "-x", language, "-fblocks", "-fno-objc-arc", "-O1",
        "-Wall", "-Werror", "-nostdinc++", "-nostdlibinc", "-isystem", str(LIBCXX), "-isystem",
        str(HERE / "framework" / "include"), "-isystem", str(torch / "include"), "-isystem",
        str(torch / "include" / "torch" / "csrc" / "api" / "include"), "-isystem", sysconfig.get_path("include"),
        "-idirafter", str(darwin_files() / "include" / "any-darwin-any"), "-DINFINITY=__builtin_inff()",
        '-DNAN=__builtin_nanf("")', *flags, "-c", str(source), "-o", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CheckError(f"{source} does not compile for macOS:\n{done.stderr.strip()}")


def _symbols(*arguments: str) -> set[str]:
    done = subprocess.run([NM, "--just-symbol-name", *arguments], capture_output=True, text=True, check=True)
    return {line.strip() for line in done.stdout.splitlines() if line.strip() and not line.endswith(":")}


@cache
def torch_exports(torch: Path) -> frozenset[str]:
    names: set[str] = set()
    for library in ("libc10.dylib", "libtorch_cpu.dylib", "libtorch.dylib"):
        names |= _symbols("--extern-only", "--defined-only", str(torch / "lib" / library))
    return frozenset(names)


@cache
def system_exports() -> frozenset[str]:
    """What libSystem offers: the C library, libdispatch and the blocks runtime."""
    text = (darwin_files() / "darwin" / "libSystem.tbd").read_text()
    return frozenset(re.findall(r"[\w$]+", text))


def unresolved(objects: Iterable[Path], torch: Path) -> list[str]:
    """Symbols that the objects want and nobody offers."""
    files = [str(path) for path in objects]
    wanted = _symbols("--undefined-only", *files) - _symbols("--defined-only", *files)
    return sorted(name for name in wanted - torch_exports(torch) - system_exports() if not RUNTIME.fullmatch(name))


def check(sources: Sequence[Path], version: str, flags: Sequence[str] = ()) -> None:
    """Raises CheckError where `sources`, linked together, would not build or load with this torch on a Mac."""
    need_tools()
    torch = torch_files(version)
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for number, source in enumerate(sources):
            objects.append(Path(folder) / f"{number}.o")
            compile_for_mac(source, torch, objects[-1], flags)
        missing = unresolved(objects, torch)
    if missing:
        listed = "\n  ".join(missing)
        raise CheckError(f"symbols that torch {version} for macOS does not export (nor the system):\n  {listed}")


def package() -> tuple[list[Path], list[str]]:
    """The sources and flags with which setup.py builds the extension on a Mac."""
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    setup.generate_grids()
    extension = setup.extension("darwin")
    macros = [f"-D{name}={value}" for name, value in extension.define_macros if name != "TORCH_EXTENSION_NAME"]
    includes = [f"-I{folder}" for folder in extension.include_dirs if Path(folder).is_relative_to(ROOT / "build")]
    arguments = extension.extra_compile_args
    own = arguments["cxx"] if isinstance(arguments, dict) else arguments
    return [ROOT / source for source in extension.sources], [*macros, *includes, *own]


def examples() -> list[Path]:
    return sorted((HERE / "extension").glob("*.mm"))


def main() -> int:
    sources, flags = package()
    for version in TORCH_VERSIONS:
        try:
            check(sources, version, flags)
            check(examples(), version, flags)
        except NotAvailable as error:
            print(f"mac-check: not done: {error}", file=sys.stderr)
            return 2
        except CheckError as error:
            print(f"mac-check: {error}", file=sys.stderr)
            return 1
        print(f"torch {version}: {len(sources)} files of the package and the example extension build for arm64 macOS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
