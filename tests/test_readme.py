"""README's programs and commands, run as they stand."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CACHE, ROOT, missing

README = (ROOT / "README.md").read_text()
MODEL = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.S)
COMMANDS = re.findall(r"^torch-qmm .*$", README, re.M)


@pytest.fixture
def folder(tmp_path):
    if not MODEL.exists():
        missing(f"the demo model is not at {MODEL.relative_to(ROOT)}")
    models = tmp_path / MODEL.parent.relative_to(ROOT)
    models.mkdir(parents=True)
    (models / MODEL.name).symlink_to(MODEL)
    return tmp_path


def run(command, folder):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_has_programs_and_commands():
    assert len(PROGRAMS) == 2 and len(COMMANDS) == 3


def test_first_program_answers(folder):
    assert "Paris" in run([sys.executable, "-c", PROGRAMS[0]], folder)


def test_second_program_has_the_shapes_it_names(folder):
    check = "\nassert repr(weight).startswith('QuantTensor(Q4_1, shape=[1536, 576]'), weight"
    check += "\nassert y.shape == (1, 5, 1536) and y.dtype == torch.float32"
    run([sys.executable, "-c", PROGRAMS[1] + check], folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_command(folder, command):
    words = [str(MODEL) if word == "FILE" else word for word in shlex.split(command)]
    assert run(words, folder).strip()


def test_makefile_has_the_targets_that_are_named():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([\w-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.M), target
