"""The simulated Metal framework, by small Objective-C++ programs, and its headers against Apple's metadata."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import missing

from tests import metalsim
from tests.metalsim import NotInstalledError, build, framework, mac_check

TESTS = framework.HERE / "tests"


@pytest.fixture(scope="module")
def program():
    """Builds a program (once) and runs one of its cases."""
    try:
        framework.need_tools()
    except NotInstalledError as error:
        missing(str(error))

    def run(name: str, case: str, **environment: str) -> subprocess.CompletedProcess:
        source = TESTS / f"{name}.mm"
        key = build.contents(source, TESTS / "harness.h", framework.HERE / "include") + str(framework.build_framework())
        path = build.cached(f"test-{name}", "", key, lambda out: framework.compile_program(source, out))
        plain = {k: v for k, v in os.environ.items() if not k.startswith("METALSIM_")}
        command = [str(path), case]
        return subprocess.run(command, capture_output=True, text=True, env={**plain, **environment}, timeout=120)

    return run


def cases(name: str) -> list[str]:
    return re.findall(r"^CASE\((\w+)\)", (TESTS / f"{name}.mm").read_text(), re.M)


SETTINGS = {
    "eager_work_is_done_without_a_wait": {"METALSIM_COMMIT": "eager"},
    "settings_and_records": {"METALSIM_ORDER": "lifo", "METALSIM_SEED": "5", "METALSIM_THREADS": "3"},
}


@pytest.mark.parametrize("case", cases("work"))
def test_work(program, case):
    done = program("work", case, METALSIM_ZOMBIES="1", **SETTINGS.get(case, {}))
    assert (done.stdout, done.stderr, done.returncode) == ("passed\n", "", 0)


@pytest.mark.parametrize("case", cases("work"))
def test_work_in_the_other_modes(program, case):
    """Without checks and at once; what is about lateness, or about a fault that only checks find, apart."""
    if case in SETTINGS or "late" in case or "fault" in case or "events" in case:
        pytest.skip("is about one of the settings that this changes")
    done = program("work", case, METALSIM_CHECK="0", METALSIM_COMMIT="eager", METALSIM_ORDER="fifo")
    assert (done.stdout, done.stderr, done.returncode) == ("passed\n", "", 0)


@pytest.mark.parametrize("commit", ["late", "eager"])
@pytest.mark.parametrize("case", cases("schedule"))
def test_schedule(program, case, commit):
    if commit == "eager" and case.startswith("late"):
        pytest.skip("is about late work")
    done = program("schedule", case, METALSIM_ZOMBIES="1", METALSIM_COMMIT=commit)
    assert (done.stdout, done.stderr, done.returncode) == ("passed\n", "", 0)


# Endings other than "passed": the last line of stdout, and a part of stderr.
ENDINGS = {
    "message_to_a_freed_object": ("freed", "length sent to a freed object"),
    "releasing_once_too_often": ("freed", "release sent to a freed object"),
    "entering_a_queue_from_itself": ("", "dispatch_sync on queue 'mine' from a block that runs on it"),
    "an_exception_leaves_a_block": ("terminated", ""),
    "index_beyond_an_array": ("", "index 1 beyond the 1 objects"),
}


@pytest.mark.parametrize("case", cases("runtime"))
def test_runtime(program, case):
    done = program("runtime", case, METALSIM_ZOMBIES="1")
    if case in ENDINGS:
        last, error = ENDINGS[case]
        assert done.stdout.strip() == last and error in done.stderr and done.returncode < 0
    else:
        wanted = "autorelease with no pool in place: an object of MetalsimString leaks" if "without" in case else ""
        assert done.stdout == "passed\n" and wanted in done.stderr and bool(wanted) == bool(done.stderr)


# What each misuse is told; None where the command buffer can't know (stderr does).
MISUSE = {
    "nothing_wrong": "no error",
    "offset_beyond_the_buffer": "setBuffer:offset:atIndex:]: offset 32 is not within the buffer's 32 bytes",
    "new_offset_beyond_the_buffer": "setBufferOffset:atIndex:]: offset 33 is not within",
    "new_offset_without_a_buffer": "setBufferOffset:atIndex:]: no buffer is bound at index 4",
    "buffer_index_31": "setBuffer:offset:atIndex:]: index 31 is above 30",
    "bytes_index_31": "setBytes:length:atIndex:]: index 31 is above 30",
    "too_many_bytes": "setBytes:length:atIndex:]: 4097 bytes; 1 to 4096 are allowed",
    "no_bytes": "setBytes:length:atIndex:]: 0 bytes; 1 to 4096 are allowed",
    "threadgroup_memory_not_of_16": "setThreadgroupMemoryLength:atIndex:]: 20 bytes are no multiple of 16",
    "threadgroup_memory_above_the_limit": "32784 bytes, more than the device's 32768",
    "threadgroup_memory_above_the_limit_in_all": "32784 bytes of threadgroup memory, more than the device's 32768",
    "too_many_threads": "a threadgroup of (32, 33, 1) threads has more than the pipeline's 1024",
    "more_threads_than_the_kernel_takes": "a threadgroup of (65, 1, 1) threads has more than the pipeline's 64",
    "so_many_threads_that_the_product_wraps": "1) threads has more than the pipeline's 1024",
    "empty_threadgroup": "a threadgroup of (8, 0, 1) threads is empty",
    "empty_grid": "a grid of (0, 1, 1) is empty",
    "endless_grid": "more than 32 bits count",
    "so_many_threadgroups_that_the_product_wraps": "more than 32 bits count",
    "no_pipeline": "dispatchThreads:threadsPerThreadgroup:]: no pipeline is set",
    "nil_pipeline": "setComputePipelineState:]: the pipeline is nil",
    "no_buffer": "kernel add_one needs a buffer at index 0",
    "no_threadgroup_memory": "kernel work needs threadgroup memory at index 0",
    "too_few_bytes_for_a_reference": "kernel work needs 4 bytes at index 2, there are 2",
    "too_small_a_rest_for_a_reference": "kernel work needs 4 bytes at index 2, there are 2",
    "constant_memory_at_an_odd_offset": "constant memory at index 2, where offset 6 is no multiple of 4",
    "more_threads_than_the_descriptor_says": "a threadgroup of (5, 1, 1) threads has more than the pipeline's 4",
    "a_promise_of_whole_simdgroups": "a threadgroup of (8, 1, 1) threads is no multiple of 32",
    "pipeline_with_more_threads_than_there_are": None,
    "pipeline_of_no_function": None,
    "encoding_after_the_end": "setBuffer:offset:atIndex:]: the encoder has ended",
    "ending_twice": "endEncoding]: the encoder has ended",
    "two_encoders_at_once": "computeCommandEncoder]: the encoder before has not ended",
    "committing_with_an_open_encoder": "commit]: an encoder has not ended",
    "releasing_an_open_encoder": "the encoder is released before endEncoding",
    "encoding_after_the_commit": "blitCommandEncoder]: the command buffer is committed already",
    "committing_twice": "commit]: committed twice",
    "a_handler_after_the_commit": "the command buffer is committed already",
    "waiting_before_the_commit": None,
    "signalling_within_an_encoder": "encodeSignalEvent:value:]: the encoder before has not ended",
    "signalling_no_event": "encodeSignalEvent:value:]: the event is nil",
    "waiting_for_no_event": "encodeWaitForEvent:value:]: the event is nil",
    "too_many_open_command_buffers": None,
    "copy_beyond_the_buffer": "25 bytes at 8 are not within the buffer's 32 bytes",
    "copy_over_itself": "the two ranges overlap",
    "fill_beyond_the_buffer": "fillBuffer:range:value:]: 8 bytes at 18446744073709551615 are not within",
    "empty_buffer": None,
    "endless_buffer": None,
    "borrowing_unaligned_memory": None,
    "constant_of_no_type": None,
    "pipeline_of_nothing": None,
}
STDERR = {
    "waiting_before_the_commit": "waitUntilCompleted]: the command buffer is not committed",
    "too_many_open_command_buffers": "commandBuffer]: 3 command buffers are neither committed nor released",
    "empty_buffer": "newBufferWithLength:options:]: a buffer of 0 bytes",
    "endless_buffer": "newBufferWithLength:options:]: a buffer of 1152921504606846976 bytes",
    "borrowing_unaligned_memory": "the pointer is not aligned to a page",
    "constant_of_no_type": "type 0 is none of a function constant",
    "pipeline_of_nothing": "the function is nil",
    "pipeline_with_more_threads_than_there_are": "1025 threads in a threadgroup; the device's limit is 1024",
    "pipeline_of_no_function": "the descriptor has no function",
}


@pytest.mark.parametrize("case", cases("misuse"))
def test_misuse(program, case):
    done = program("misuse", case, METALSIM_ABORT="0")
    said, wanted = done.stdout.strip(), MISUSE[case]
    assert done.returncode == 0, done.stderr
    assert (wanted in said) if wanted else (said == "no error" and STDERR[case] in done.stderr)


@pytest.mark.parametrize("case", [case for case in MISUSE if case != "nothing_wrong"])
def test_misuse_ends_the_process_as_validation_does(program, case):
    done = program("misuse", case)
    assert done.returncode == -6 and (MISUSE[case] or STDERR[case]) in done.stderr


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("METALSIM_CHECK", "yes", "one of 0, 1"),
        ("METALSIM_ORDER", "sideways", "one of fifo, lifo, random"),
        ("METALSIM_COMMIT", "", "one of late, eager"),
        ("METALSIM_SEED", "-1", "a whole number"),
        ("METALSIM_THREADS", "0", "a whole number of at least 1"),
    ],
)
def test_bad_settings(program, name, value, wanted):
    done = program("work", "settings_and_records", **{name: value})
    assert done.returncode == 2 and f"{name} must be {wanted}, not '{value}'" in done.stderr


# ---- What the framework takes from the engine and the source pass.


def test_threads_with_constants_of_their_own():
    """Constants are variables of the shader: two processor threads that dispatch it must not share them."""
    if not build.available():
        missing("clang-19 is not installed")
    library = metalsim.compile(
        "constant int kValue [[function_constant(0)]];\nconstant int kTwice = 2 * kValue;\n"
        "kernel void fill(device int* x, uint i [[thread_position_in_grid]]) { x[i] = kTwice; }"
    )

    def wrong(value: int) -> int:
        count, kernel = 0, library.kernel("fill", {0: value})
        for _ in range(40):
            x = np.zeros(4096, np.int32)
            kernel.dispatch(grid=x.size, threadgroup=64, buffers=[x], checked=False, workers=1)
            count += int((x != 2 * value).sum())
        return count

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(wrong, [1, 2, 3, 4])) == [0, 0, 0, 0]


@pytest.mark.parametrize("checked", [False, True])
def test_a_constant_forgets_its_value(checked):
    if not build.available():
        missing("clang-19 is not installed")
    library = metalsim.compile(
        "constant int kValue [[function_constant(0)]];\nconstant int kTwice = 2 * kValue;\n"
        "constant bool kGiven = is_function_constant_defined(kValue);\n"
        "kernel void fill(device int* x) { x[0] = kTwice; x[1] = kGiven; }"
    )
    for given, want in (({0: 4}, [8, 1]), ({}, [0, 0]), ({"kValue": -1}, [-2, 1])):
        x = np.full(2, 99, np.int32)
        library.kernel("fill", given).dispatch(grid=1, threadgroup=1, buffers=[x], checked=checked)
        assert x.tolist() == want


# ---- The headers.

ENUMS = re.compile(r"^\s+((?:MTL|NS)\w+) = ([^,]+),$", re.M)
HEADERS = framework.HERE / "include" / "Metal"


def our_constants() -> dict[str, int]:
    text = "\n".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    return {name: int(eval(value, {})) for name, value in ENUMS.findall(text)}


@pytest.fixture(scope="module")
def apples_metadata() -> str:
    try:
        return mac_check.metal_metadata().read_text()
    except mac_check.NotAvailable as error:
        pytest.skip(str(error))


def test_enum_values_are_apples(apples_metadata):
    """Every value that our headers give is the one that Apple's headers give."""
    apples = dict(re.findall(r"\$?(MTL\w+)@(-?\d+)", apples_metadata))
    ours = our_constants()
    assert len(ours) > 80
    unknown = {name for name in ours if name not in apples}
    assert not unknown
    assert ours == {name: int(apples[name]) for name in ours}


# Selectors and properties of classes (not protocols) that the metadata has no need to mention.
UNLISTED = {
    "setConstantValue:type:atIndex:", "setConstantValue:type:withName:", "setConstantValues:type:withRange:",
    "computeFunction", "dispatchQueue", "languageVersion", "mathMode", "preprocessorMacros",
}  # fmt: skip


def test_selectors_are_apples(apples_metadata):
    """Every method and property of our headers is in the metadata, in Apple's spelling."""
    known = set(re.findall(r'b"([A-Za-z]\w*(?::\w*)*:?)"', apples_metadata))
    text = "\n".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    flat = re.sub(r"\([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*\)", " ", re.sub(r"//[^\n]*|#[^\n]*", "", text))
    selectors = {
        "".join(re.findall(r"(\w+:)", method)) or method.split()[-1] for method in re.findall(r"^-([^;]*);", flat, re.M)
    }
    properties = set(re.findall(r"^@property[^;]*?(\w+);", text, re.M))
    assert {"setBytes:length:atIndex:", "newLibraryWithSource:options:error:"} <= selectors and "status" in properties
    setters = {name for name in properties if f"set{name[0].upper()}{name[1:]}:" in known}
    assert (selectors | properties) - known - setters == UNLISTED


@pytest.mark.slow
@pytest.mark.parametrize("name", ["misuse", "runtime", "schedule", "work"])
def test_programs_compile_for_a_mac(name, tmp_path):
    """What runs here also compiles with Apple's own headers of the runtime and of libdispatch."""
    try:
        mac_check.need_tools()
        torch = mac_check.torch_files(mac_check.TORCH_VERSIONS[-1])
        mac_check.compile_for_mac(TESTS / f"{name}.mm", torch, tmp_path / "out.o", [f"-I{framework.HERE}"])
    except mac_check.NotAvailable as error:
        missing(str(error))
