"""The Mac check passes our code and notices what a Mac would refuse. All of it is compiled, none of it runs."""

import pytest
from conftest import missing

from tests.metalsim import mac_check

pytestmark = pytest.mark.slow

OLDEST, NEWEST = mac_check.TORCH_VERSIONS[0], mac_check.TORCH_VERSIONS[-1]


@pytest.fixture(autouse=True, scope="module")
def tools():
    try:
        mac_check.need_tools()
        mac_check.darwin_files()
        for version in (OLDEST, NEWEST):
            mac_check.torch_files(version)
    except mac_check.NotAvailable as error:
        missing(str(error))


@pytest.mark.parametrize("version", mac_check.TORCH_VERSIONS)
def test_our_own_code_builds_for_a_mac(version):
    sources, flags = mac_check.package()
    assert any(source.name == "kernels_neon.cpp" for source in sources)
    mac_check.check(sources, version, flags)
    mac_check.check(mac_check.examples(), version)


METAL = "#import <Foundation/Foundation.h>\n#import <Metal/Metal.h>\n"
MISTAKES = {
    "unknown selector": (METAL + "void f(id<MTLDevice> d) { [d newBufferWithLen:4 options:0]; }", "newBufferWithLen"),
    "wrong argument": (METAL + "void f(id<MTLDevice> d) { [d newBufferWithLength:@\"4\" options:0]; }", "NSString"),
    "unused result of a warning kind": ("int f() { int unused = 1; return 0; }", "unused"),
    "Linux header": ("#include <sys/epoll.h>\n", "epoll"),
    "symbol that torch lacks": (
        METAL + "namespace at::mps { void no_such_function(); }\nvoid f() { at::mps::no_such_function(); }",
        "no_such_function",
    ),
    "symbol that torch has for Linux only": (
        "namespace at::mps { void dispatch_sync(); }\nvoid f() { at::mps::dispatch_sync(); }", "dispatch_sync",
    ),
    "C function of Linux": ('extern "C" int malloc_trim(long); int f() { return malloc_trim(0); }', "malloc_trim"),
    "unknown C function": ('extern "C" void no_such_call(); void f() { no_such_call(); }', "no_such_call"),
    "ARC keyword": (METAL + "__weak id<MTLBuffer> kept;", "weak"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name, tmp_path):
    text, message = MISTAKES[name]
    source = tmp_path / "mistake.mm"
    source.write_text(text + "\n")
    with pytest.raises(mac_check.CheckError, match=message):
        mac_check.check([source], NEWEST)


def test_a_newer_torch_is_not_an_older_one(tmp_path):
    """A symbol that came after the oldest torch is refused there only."""
    source = tmp_path / "new.mm"
    # An operator of torch's C interface that 2.13 exports and 2.10 does not.
    only_new = sorted(
        name
        for name in mac_check.torch_exports(mac_check.torch_files(NEWEST))
        - mac_check.torch_exports(mac_check.torch_files(OLDEST))
        if name.startswith("_aoti_torch_") or name.startswith("_torch_")
    )[0].removeprefix("_")
    source.write_text(f'extern "C" void {only_new}();\nvoid f() {{ {only_new}(); }}\n')
    mac_check.check([source], NEWEST)
    with pytest.raises(mac_check.CheckError, match=only_new):
        mac_check.check([source], OLDEST)


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(mac_check, "CLANG", "no-such-clang")
    with pytest.raises(mac_check.NotAvailable, match="clang-19"):
        mac_check.need_tools()
    monkeypatch.undo()
    monkeypatch.setattr(mac_check, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(mac_check.NotAvailable, match=f"torch {NEWEST}"):
        mac_check.torch_files(NEWEST)
    assert not any(tmp_path.rglob("*.whl"))
