"""Strict mode refuses what Apple's compiler refuses, naming construct, file and line; and nothing else."""

from pathlib import Path

import pytest
import torch
from conftest import missing

from tests import metalsim

SHADERS = Path(metalsim.__file__).parent / "shaders"
TORCH = Path(torch.__file__).parent / "include"

# Line 1 of each source below.
HEADER = "#include <metal_stdlib>\nusing namespace metal;\nstruct Block { half d; uchar q[16]; };\n"
PARAMETERS = (
    "device float* o [[buffer(0)]], device const Block* w [[buffer(1)]], threadgroup float* s [[threadgroup(0)]], "
    "constant uint& n [[buffer(2)]], constant float4* c [[buffer(3)]], device const bfloat* b [[buffer(4)]], "
    "uint t [[thread_index_in_threadgroup]]"
)


@pytest.fixture(autouse=True)
def _clang():
    if not metalsim.available():
        missing("clang-19 is not installed")


def source(before: str, body: str) -> str:
    """`before` stands in line 4, `body` in line 6."""
    return f"{HEADER}{before}\nkernel void k({PARAMETERS}) {{\n{body}\n}}\n"


NO_SPACE = "must have an explicit address space qualifier"
# Declarations before the kernel, its body, the line of the mistake, what the message says.
REFUSED = {
    "parameter: pointer": ("float f(const Block* b) { return b->d; }", "o[t] = f(0);", 4, NO_SPACE),
    "parameter: reference": ("void f(float& x) { x = 1; }", "float x; f(x);", 4, NO_SPACE),
    "parameter: array reference": ("struct S { float* p; };", "", 4, NO_SPACE),
    "template parameter's type": ("template <typename T> void f(T* p) { *p = 1; }", "f(o);", 4, NO_SPACE),
    "returned pointer": ("float* f(device float* p) { return p; }", "", 4, NO_SPACE),
    "alias": ("using P = float*;", "", 4, NO_SPACE),
    "typedef": ("typedef float* P;", "", 4, NO_SPACE),
    "local pointer": ("", "const uchar* q = w[t].q; o[t] = q[0];", 6, NO_SPACE),
    "local pointer after a statement": ("", "o[t] = 1; float* q = o; q[0] = 1;", 6, NO_SPACE),
    "local reference": ("", "float a[2]; float& r = a[0]; r = 1;", 6, NO_SPACE),
    "pointer to a pointer": ("", "device float** p; p = 0;", 6, NO_SPACE),
    "pointer in a for": ("", "for (const float* p = 0; p; p++) {}", 6, NO_SPACE),
    "pointer in a cast": ("", "o[t] = *(float*)o;", 6, NO_SPACE),
    "pointer in a static_cast": ("", "o[t] = *static_cast<float*>(o);", 6, NO_SPACE),
    "lambda's parameter": ("", "auto f = [](float* p) { return *p; }; o[t] = f(o);", 6, NO_SPACE),
    "threadgroup from device": ("", "threadgroup float* p = o; p[0] = 1;", 6, "cannot initialize a variable of type"),
    "device from threadgroup by cast": ("", "device float* p = (device float*)s; p[0] = 1;", 6, "address space"),
    "thread from device": ("", "thread float* p = o; p[0] = 1;", 6, "cannot initialize a variable of type"),
    "wrong space in a call": (
        "float f(threadgroup const float* p) { return *p; }",
        "o[t] = f(o);",
        6,
        "no matching function for call to 'f'",
    ),
    "device from constant": ("", "device const float4* p = c; o[t] = p[0].x;", 6, "cannot initialize a variable"),
    "write to constant": ("", "n = 3;", 6, "cannot assign to variable 'n'"),
    "write to a constant element": ("", "c[0] = float4(1);", 6, "no matching member function|no viable overloaded '='"),
    "write to a constant component": ("", "c[0].x = 1;", 6, "no matching member function|no setter|constant"),
    "write through const": ("", "w[0].d = 1;", 6, "read-only|const"),
    "double": ("", "double x = 1; o[t] = x;", 6, "Metal has no double"),
    "bfloat from float": ("", "bfloat x = o[t]; o[t] = x;", 6, "no viable conversion from .* to '.*bfloat'"),
    "bfloat from a literal": ("", "bfloat x = 1.5; o[t] = x;", 6, "no viable conversion from 'float' to '.*bfloat'"),
    "bfloat from half": ("", "bfloat x = w[t].d; o[t] = x;", 6, "no viable conversion from .* to '.*bfloat'"),
    "bfloat assigned float": ("", "bfloat x = b[t]; x = o[t]; o[t] = x;", 6, "no viable overloaded '='"),
    "bfloat returned": ("bfloat f(float x) { return x; }", "o[t] = f(1);", 4, "no viable conversion from .*float"),
    "bfloat as an argument": ("float f(bfloat x) { return x; }", "o[t] = f(o[t]);", 6, "no matching function"),
    "bfloat updated by float": ("", "bfloat x = b[t]; x += o[t]; o[t] = x;", 6, "no viable overloaded '\\+='"),
    "recursion": ("uint f(uint x) { return x < 2 ? x : f(x - 1); }", "o[t] = f(t);", 4, "no recursion: 'f'"),
    "recursion that nobody calls": ("static uint f(uint x) { return x ? f(x - 1) : 0; }", "", 4, "no recursion: 'f'"),
    "mutual recursion": (
        "uint g(uint x); uint f(uint x) { return x ? g(x - 1) : 0; } uint g(uint x) { return x ? f(x - 1) : 1; }",
        "o[t] = f(t);",
        4,
        "no recursion: '[fg]'",
    ),
    "recursion in a template": (
        "template <int N> uint f(uint x) { return x ? f<N>(x - 1) : N; }",
        "o[t] = f<3>(t);",
        4,
        "no recursion: 'f",
    ),
    "function pointer": (
        "float f(float x) { return x; }",
        "float (*p)(float) = f; o[t] = p(1);",
        6,
        "pointers to func",
    ),
    "function pointer's type": ("typedef float (*P)(float);", "", 4, "no pointers to functions"),
    "function pointer's alias": ("using P = float (*)(float);", "", 4, "no pointers to functions"),
    "function pointer as a member": ("struct S { float (*p)(float); };", "", 4, "no pointers to functions"),
    "function taken by auto": (
        "float f(float x) { return x; }",
        "auto p = f; o[t] = p(1);",
        6,
        "pointers to functions",
    ),
    "function's address taken": ("float f(float x) { return x; }", "auto p = &f; o[t] = p(1);", 6, "pointers to func"),
    "static local": ("", "static float x = 1; o[t] = x++;", 6, "no static local"),
    "static local in a function": ("float f() { static int x; return x++; }", "", 4, "no static local"),
    "throw": ("", "if (t > 5) throw 1;", 6, "no exceptions"),
    "try": ("", "try { o[t] = 1; } catch (...) {}", 6, "no exceptions"),
    "standard header": ("#include <vector>", "", 4, "'vector' file not found"),
    "C header": ("#include <math.h>", "", 4, "'math.h' file not found"),
    "new": ("", "o[t] = *new float;", 6, "no operator new"),
    "delete": ("", "delete o;", 6, "no operator delete"),
    "virtual": ("struct S { virtual float f(); };", "", 4, "no virtual functions"),
    "dynamic_cast": ("", "o[t] = *dynamic_cast<device float*>(o);", 6, "no dynamic_cast"),
    "goto": ("", "goto end; end: o[t] = 1;", 6, "no goto"),
    "assembly": ("", 'asm("nop");', 6, "no inline assembly"),
    "an unknown name": ("", "o[t] = no_such_function(1);", 6, "use of undeclared identifier"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistake_is_refused_with_its_place(name):
    before, body, line, what = REFUSED[name]
    with pytest.raises((metalsim.SourceError, metalsim.CompileError), match=what) as caught:
        metalsim.strict(source(before, body))
    assert f"<source>:{line}:" in str(caught.value)


ACCEPTED = {
    "every address space": (
        "float f(device const float* a, threadgroup float& b, constant float4& c, thread float* d) "
        "{ return *a + b + c.x + *d; }",
        "float x = 1; o[t] = f(o, s[0], c[1], &x);",
    ),
    "space after the type": ("", "float device* p = o; const float threadgroup* q = s; p[0] = q[0];"),
    "const device": ("", "const device Block* p = w; o[t] = p[t].d;"),
    "thread pointer to a local": (
        "",
        "float a[4]; thread float* p = a; thread float& r = a[1]; p[0] = r; o[t] = a[0];",
    ),
    "deduced": ("", "for (auto p = w; p < w + 1; p++) { auto x = *p; o[t] += x.d; }"),
    "pointers to pointers": (
        "",
        "device float* p = o; device float* thread* q = &p; device float* thread& r = p; o = *q; r = o;",
    ),
    "products, masks and addresses": (
        "constant int width = 4; constant int size = width * width; float g(float x, int m = 2 * 3) { return x * m; }",
        "int a = 2, e = 3; int f = a * e, d = (a * e) & e; o[a * e] = g(a * e, a & e); *o = a * -e; "
        "if (a & e) o[t] = *(o + a) * *(o + e); thread int* p = &a; for (int i = 0; i < a * e; i++) *p = i * d + f;",
    ),
    "constant by value": ("", "float4 x = c[0]; o[t] = x.x + c[1].y + c[2].zw.x + n; o[t] += dot(c[0], c[1]);"),
    "constant tables": (
        "constant float table[2] = {1, 2}; constant int2 pairs[] = {{1, 2}, {3, 4}};",
        "o[t] = table[t];",
    ),
    "constant to a function": ("float f(constant float4& x) { return x.x; }", "o[t] = f(c[0]);"),
    "bfloat by cast": (
        "bfloat f(float x) { return bfloat(x); }",
        "bfloat x = bfloat(o[t]), y = bfloat(float(w[t].d)), z = static_cast<bfloat>(1.5f), l = 1.5bf, i = 2; "
        "o[t] = x * y + z - l / i; x += y; x = b[t] * b[t]; o[t] = x + 1.0f; o[t] = float(x) * o[t];",
    ),
    "half from float": ("", "half x = o[t]; half4 y = half4(c[0]); o[t] = x + y.x;"),
    "atomics": (
        "",
        "threadgroup atomic_int a; atomic_store_explicit(&a, 1, memory_order_relaxed); "
        "atomic_fetch_add_explicit((device atomic_uint*)o, 1u, memory_order_relaxed);",
    ),
    "matrices of a simdgroup": (
        "",
        "simdgroup_float8x8 m; simdgroup_load(m, o, 8); simdgroup_multiply_accumulate(m, m, m, m); "
        "threadgroup_barrier(mem_flags::mem_threadgroup); simdgroup_store(m, s, 8); "
        "m.thread_elements()[0] = simd_sum(o[t]); o[t] = m.thread_elements()[0];",
    ),
    "overloads and templates are no recursion": (
        "float f(float x) { return x; } float f(float2 x) { return f(x.x) + f(x.y); } "
        "template <int N> int g() { if constexpr (N > 0) return g<N - 1>() + 1; else return 0; }",
        "o[t] = f(float2(1)) + g<3>();",
    ),
    "functions as arguments": (
        "float f(float x) { return x; } template <float (*F)(float)> float g(float x) { return F(x); } "
        "static inline float h(float x, float (*op)(float)) { return op(x); }",
        "o[t] = g<f>(1) + h(2, f);",
    ),
    "static constants": ("static constant float pi = 3;", "static constant float one = 1; o[t] = pi + one;"),
    "names that OpenCL keeps": ("", "uint local = 1, global = 2, generic = 3; o[t] = local + global + generic;"),
    "function constants": (
        "constant int k0 [[function_constant(0)]]; constant int k1 = is_function_constant_defined(k0) ? 2 * k0 : 7;",
        "o[t] = k0 + k1;",
    ),
    "swizzles": ("", "float4 v = c[0]; v.xy = v.wz; v.rgb *= 2; o[t] = v.zyx.x; packed_float3 p = v.xyz; o[t] = p.x;"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_near_miss_is_accepted(name):
    text = source(*ACCEPTED[name])
    metalsim.strict(text)
    metalsim.compile(text)


@pytest.mark.parametrize("name", ["language", "tiled"])
def test_clean_shaders_pass(name):
    metalsim.strict(SHADERS / f"{name}.metal")


@pytest.mark.parametrize("header", sorted(p.name for p in (TORCH / "c10" / "metal").glob("*.h")))
def test_torchs_headers_compile_in_both_modes(header):
    text = f"#include <metal_stdlib>\n#include <c10/metal/{header}>\nkernel void k(device float* o) {{ o[0] = 1; }}\n"
    metalsim.compile(text, [TORCH])
    metalsim.strict(text, [TORCH])


def test_defines_and_headers_are_seen(tmp_path):
    (tmp_path / "own.h").write_text("#pragma once\n\n#ifdef BAD\ninline float f(float* p) { return *p; }\n#endif\n")
    metalsim.strict('#include "own.h"\n', [tmp_path])
    with pytest.raises(metalsim.SourceError, match=r"own\.h:4: pointer type"):
        metalsim.strict('#include "own.h"\n', [tmp_path], {"BAD": "1"})
