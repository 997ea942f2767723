"""The cache of compiled shaders: found by content, pruned by age, safe with several processes."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from conftest import missing

from tests import metalsim
from tests.metalsim import build

SOURCE = "#include <metal_stdlib>\nkernel void k(device float* o) { o[0] = 1; }\n"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    if not metalsim.available():
        missing("clang-19 is not installed")
    monkeypatch.setattr(build, "CACHE", tmp_path)
    return tmp_path


def write(text: str, made: list[str]):
    def make(out: Path) -> None:
        made.append(text)
        out.write_text(text)

    return make


def test_entries_are_made_once_for_each_key():
    made: list[str] = []
    for key in ("a", "b", "a"):
        path = build.cached("x", ".txt", key, write(key, made))
        assert path.read_text() == key
    assert made == ["a", "b"]


def test_entries_that_nobody_used_for_a_month_go(cache):
    made: list[str] = []
    used, unused = (build.cached("x", ".txt", key, write(key, made)) for key in ("used", "unused"))
    leftover, recent = cache / "tmpabc", cache / "tmpdef"
    for folder in (leftover, recent):
        folder.mkdir()
        (folder / "part.so").write_text("")
    old = time.time() - build.KEEP_SECONDS - 60
    for path in (used, unused, leftover):
        os.utime(path, (old, old))
    build.cached("x", ".txt", "used", write("used", made))  # a use makes it young again
    build._prune.cache_clear()
    build.cached("x", ".txt", "new", write("new", made))
    assert used.exists() and recent.exists()
    assert not unused.exists() and not leftover.exists()


def compile_at(folder: str) -> str:
    build.CACHE = Path(folder)
    return str(metalsim.compile(SOURCE).image(checked=False).path)


def test_several_processes_compile_the_same_shader(cache):
    with ProcessPoolExecutor(2) as pool:
        paths = set(pool.map(compile_at, [str(cache)] * 4))
    assert len(paths) == 1 and Path(paths.pop()).exists()
    assert not [p for p in cache.iterdir() if p.name.startswith("tmp")]


def test_a_failed_build_leaves_nothing(cache):
    with pytest.raises(metalsim.CompileError, match="no_such_name"):
        metalsim.compile(SOURCE.replace("1;", "no_such_name;"))
    assert not [p for p in cache.iterdir() if p.suffix == ".so"]
