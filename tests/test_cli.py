"""The command line: what it prints, what it exits with, and that an error is one clear line."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tiny_gguf import (
    TEMPLATE,
    RawFile,
    array,
    build,
    byte_level_vocabulary,
    entry,
    pair,
    smollm2_path,
    string,
    write_model,
    write_sample,
)

import torch_qmm
from torch_qmm.cli import main
from torch_qmm.formats import Format
from torch_qmm.models import load_model

SPEED = re.compile(
    r"prompt: (?P<prompt>\d+) tokens, [\d.]+ tokens/s; "
    r"decode: (?P<decode>\d+) tokens, ([\d.]+ tokens/s|nothing to time)\n"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A model of random weights with a vocabulary and a chat template."""
    vocabulary = byte_level_vocabulary() | {"tokenizer.chat_template": TEMPLATE}
    reference = build("llama", vocab_size=len(vocabulary["tokenizer.ggml.tokens"]))
    path = tmp_path_factory.mktemp("cli") / "tiny.gguf"
    write_model(path, reference, "llama", metadata=vocabulary)
    return path


def generate(path: Path, *options: str, prompt: str = "hello world") -> int:
    return main(["generate", "--model", str(path), "--prompt", prompt, *options])


def start(*args: str | Path, **options) -> subprocess.Popen:
    """The command line in its own process, SIGINT as in a terminal."""
    env = os.environ | {"PYTHONPATH": str(Path(torch_qmm.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", "torch_qmm", *args],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


# --- generate ---


def test_generate_prints_the_likeliest_text_and_the_speed(tiny, capsys):
    model, tokenizer = load_model(tiny)
    ids = tokenizer("hello world", return_tensors="pt")
    new = model.generate(**ids, max_new_tokens=9, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert generate(tiny, "--max-new-tokens", "9") == 0
    out, err = capsys.readouterr()
    assert out == tokenizer.decode(new, skip_special_tokens=True) + "\n"
    speed = SPEED.fullmatch(err)
    assert (int(speed["prompt"]), int(speed["decode"])) == (ids["input_ids"].shape[1], len(new))


def test_one_new_token_has_no_decoding_to_time(tiny, capsys):
    assert generate(tiny, "--max-new-tokens", "1") == 0
    assert capsys.readouterr().err.endswith("decode: 1 tokens, nothing to time\n")


def test_chat_puts_the_prompt_into_the_template(tiny, capsys):
    _, tokenizer = load_model(tiny)
    chat = [{"role": "user", "content": "hello world"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert generate(tiny, "--chat", "--max-new-tokens", "2") == 0
    assert int(SPEED.fullmatch(capsys.readouterr().err)["prompt"]) == len(tokenizer.encode(text))


def test_sampling_follows_the_seed(tiny, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        assert generate(tiny, "--temperature", "1.5", "--seed", seed, "--max-new-tokens", "20") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_generate_in_half_dtypes(tiny, dtype, capsys):
    assert generate(tiny, "--dtype", dtype, "--max-new-tokens", "3") == 0
    assert SPEED.fullmatch(capsys.readouterr().err)


def test_the_real_model_answers():
    options = ["--chat", "--prompt", "What is the capital of France?", "--max-new-tokens", "32"]
    out, err = start("generate", "--model", smollm2_path(), *options).communicate()
    assert "Paris" in out
    assert SPEED.fullmatch(err)


def test_text_streams_and_an_interrupt_ends_it_quietly(tiny):
    process = start("generate", "--model", tiny, "--prompt", "hello", "--temperature", "1", "--max-new-tokens", "99999")
    assert process.stdout.read(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""


# --- errors ---


def error_of(capsys, code: int, *argv: str | Path) -> str:
    """The one line of an error, without its beginning."""
    assert main([str(arg) for arg in argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("torch-qmm: error: ")
    return err.removeprefix("torch-qmm: error: ").rstrip()


@pytest.mark.parametrize("command", ["inspect", "generate"])
def test_files_that_cannot_be_used(command, tmp_path, capsys):
    def argv(path: Path) -> list[str | Path]:
        return ["inspect", path] if command == "inspect" else ["generate", "--prompt", "x", "--model", path]

    missing = tmp_path / "missing.gguf"
    assert error_of(capsys, 2, *argv(missing)) == f"{missing}: No such file or directory"
    assert error_of(capsys, 2, *argv(tmp_path)) == f"{tmp_path}: Is a directory"
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    assert error_of(capsys, 1, *argv(text)) == f"{text}: magic: got b'not ', want b'GGUF'"


def test_models_that_cannot_be_loaded(tmp_path, capsys):
    path = tmp_path / "model.gguf"
    argv = ["generate", "--prompt", "x", "--model", path]
    write_sample(path)
    assert "'llama.block_count': got nothing, want one int" in error_of(capsys, 1, *argv)
    reference = build("llama")
    write_model(path, reference, "llama")
    assert error_of(capsys, 1, *argv) == f"{path}: the file has no tokenizer, want one to read the prompt with"
    vocabulary = byte_level_vocabulary()
    write_model(path, build("llama", vocab_size=len(vocabulary["tokenizer.ggml.tokens"])), "llama", metadata=vocabulary)
    assert error_of(capsys, 1, *argv, "--chat") == f"{path}: the file has no chat template, want one for --chat"


def test_arguments_that_cannot_be_used(tiny, capsys):
    argv = ["generate", "--model", tiny, "--prompt"]
    for device in ("cuda", "tpu", *(() if torch.backends.mps.is_available() else ("mps",))):
        error = error_of(capsys, 2, *argv, "x", "--device", device)
        assert error == f"--device: got '{device}', which is not available here, want cpu or mps"
    assert error_of(capsys, 2, *argv, "") == "--prompt: got a text without tokens, want at least one"
    for option, value in (
        ("--max-new-tokens", "0"),
        ("--temperature", "nan"),
        ("--temperature", "-1"),
        ("--dtype", "x"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in (*argv, "x", option, value)])
        assert stop.value.code == 2
        assert f"error: argument {option}: " in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2


def test_generate_without_transformers_says_what_to_install(tiny, capsys, monkeypatch):
    for name in ("transformers", "transformers.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    error = error_of(capsys, 2, "generate", "--model", tiny, "--prompt", "x")
    assert error.startswith("generate: import of transformers")
    assert error.endswith('; pip install "torch_qmm[models]" brings it')


# --- inspect ---


def test_inspect_lists_the_file(tmp_path, capsys):
    path = tmp_path / "sample.gguf"
    write_sample(path)
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [str(path), "GGUF version 3, 6 tensors, 568 bytes"]
    assert "text = 'grüße'" in lines
    assert "strings = ['a', '', 'βγ']" in lines
    assert any(re.fullmatch(r"experts\.weight +Q8_0 +2 x 2 x 32 +136 bytes", line) for line in lines)
    assert any(re.fullmatch(r"Q5_1 +1 tensors +192 bytes +33\.8 %", line) for line in lines)


def test_inspect_as_json(tmp_path, capsys):
    path = tmp_path / "sample.gguf"
    written = write_sample(path)
    assert main(["inspect", "--json", str(path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["files"] == [str(path)]
    assert summary["metadata"]["integers"] == [1, 2, -3]
    assert [t["name"] for t in summary["tensors"]] == list(written)
    tensor = next(t for t in summary["tensors"] if t["name"] == "a.weight")
    assert (tensor["format"], tensor["shape"], tensor["bytes"]) == ("Q4_0", [4, 64], 144)
    assert summary["totals"]["Q4_0"] == {"tensors": 1, "bytes": 144}
    assert summary["bytes"] == sum(total["bytes"] for total in summary["totals"].values())


def test_inspect_shortens_long_values_and_lets_no_control_sequence_through(tmp_path, capsys):
    escape = "\x1b[31mred"
    raw = RawFile(
        pairs=[
            pair("numbers", 9, array(4, 1000, bytes(4000))),
            pair("words", 9, array(8, 100, string("w") * 100)),
            pair("text", 8, string("x" * 500)),
            pair(escape, 8, string(escape)),
            pair("infinity", 6, struct.pack("<f", float("inf"))),
        ],
        entries=[entry(escape, [8], kind=26)],
        data=bytes(32),
    )
    path = raw.write(tmp_path / "long.gguf")
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "numbers = [0, 0, 0, 0, 0, 0, ... 1000 in all]" in out
    assert "words = ['w', 'w', 'w', 'w', 'w', 'w', ... 100 in all]" in out
    assert f"text = '{'x' * 100}'... 500 characters in all" in out
    assert "\x1b" not in out
    assert r"'\x1b[31mred' = '\x1b[31mred'" in out
    assert re.search(r"'\\x1b\[31mred' +I32 +8 +32 bytes", out)
    assert main(["inspect", "--json", str(path)]) == 0
    metadata = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["metadata"]
    assert metadata["numbers"] == {"length": 1000, "first": [0] * 6}
    assert metadata["infinity"] == "inf"


def test_inspect_into_a_closed_pipe_says_nothing():
    process = start("inspect", smollm2_path())
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


# --- doctor ---


def test_doctor(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["torch"] == torch.__version__
    assert facts["transformers"] == transformers.__version__
    assert facts["python"] == sys.version.split()[0]
    assert facts["cpu_isa"] in facts["cpu_isas"]
    assert facts["mps"] is torch.backends.mps.is_available()
    assert facts["formats"] == [fmt.name for fmt in Format]
    assert facts["gguf"] == importlib.metadata.version("gguf")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^torch +" + re.escape(torch.__version__) + "$", out, re.MULTILINE)
    assert re.search(r"^cpu isa +\w+$", out, re.MULTILINE)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"torch-qmm {torch_qmm.__version__}\n"


@pytest.mark.parametrize(
    "option, value, wanted",
    [
        ("--temperature", "1e-40", "want 0 or a number from 0.001"),
        ("--temperature", "-1", "want 0 or a number from 0.001"),
        ("--temperature", "nan", "want 0 or a number from 0.001"),
        ("--seed", "99999999999999999999999", "want a whole number from 0"),
        ("--seed", "-3", "want a whole number from 0"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_loaded(option, value, wanted, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        generate(tmp_path / "no such file", f"{option}={value}")
    assert exit_.value.code == 2
    assert f"argument {option}: got {value!r}, {wanted}" in capsys.readouterr().err


def test_a_prompt_that_is_not_utf8_is_one_clear_line(tiny, capsys):
    assert generate(tiny, prompt="a\udcffb") == 2
    assert capsys.readouterr().err == "torch-qmm: error: --prompt: got bytes that are not UTF-8, want a text\n"


def test_an_output_without_the_characters_escapes_them(tmp_path):
    path = RawFile(pairs=[pair("general.name", 8, string("Ġ"))]).write(tmp_path / "x.gguf")
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "torch_qmm", "inspect", str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and r"\u0120" in done.stdout


def test_a_closed_output_is_no_error(tmp_path):
    path = tmp_path / "x.gguf"
    write_sample(path)
    done = subprocess.run(
        f'"{sys.executable}" -m torch_qmm inspect "{path}" >&-', shell=True, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_is_refused_as_such(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        assert main(["inspect", str(tmp_path / "pipe")]) == 1
    finally:
        os.close(writer)
    assert "got a pipe or device, want a file" in capsys.readouterr().err
