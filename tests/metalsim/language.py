"""Tables of the Metal Shading Language: what the source pass knows, refuses, or has to leave out."""

import re

MAX_THREADS = 1024  # of a threadgroup, on every Apple GPU

# Positions and sizes that a kernel may ask for.
POSITIONS = {
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "grid_size",
    "grid_origin",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_quadgroup",
    "simdgroup_index_in_threadgroup",
    "quadgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
}
# Attributes that bind or rename, and those without an effect here.
BINDINGS = {"buffer", "threadgroup", "function_constant", "host_name", "kernel"}
HARMLESS = {
    "max_total_threads_per_threadgroup",
    "maybe_unused",
    "nodiscard",
    "fallthrough",
    "unused",
    "unroll",
    "clang",
}

# What Metal itself does not have.
FORBIDDEN = {
    "double": "Metal has no double",
    "new": "Metal has no operator new",
    "delete": "Metal has no operator delete",
    "throw": "Metal has no exceptions",
    "try": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "virtual": "Metal has no virtual functions",
    "dynamic_cast": "Metal has no dynamic_cast",
    "typeid": "Metal has no typeid",
    "goto": "Metal has no goto",
    "thread_local": "Metal has no thread_local",
    "asm": "Metal has no inline assembly",
}
# What Metal has but metalsim does not run.
UNSUPPORTED = re.compile(
    r"(texture\dd\w*|texturecube\w*|texture_buffer|depth\dd\w*|sampler|visible_function_table|imageblock\w*|"
    r"intersection_function_table|acceleration_structure|command_buffer|render_command|patch_control_point|"
    r"tensor|cooperative_tensor)"
)
