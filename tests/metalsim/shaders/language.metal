// One kernel a feature of the language; tests/test_metalsim_shaders.py knows what each must give.
#include <metal_stdlib>

#include "language.h"
using namespace metal;

kernel void swizzles(device const float4* in [[buffer(0)]], device float4* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
    float4 v = in[i];
    v.xy = v.wz;
    v.w += 2;
    v.yz *= float2(3, 0.5);
    out[2 * i] = v.bgra;
    out[2 * i + 1] = float4(v.x, v.yzw.zyx);
}

kernel void packed(device const packed_float3* in [[buffer(0)]], device packed_half3* out [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
    float3 v = in[i];
    out[i] = packed_half3(half3(v * in[i].x));
}

kernel void matrices(device const float2x3* in [[buffer(0)]], device const float3* x [[buffer(1)]],
                     device float2* out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    out[i] = transpose(in[i]) * x[i];
}

kernel void halves(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]], device half* out [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = a[i] * b[i] + 0.1h;
}

kernel void bfloats(device const float* a [[buffer(0)]], device ushort* out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    bfloat x = bfloat(a[i]);
    out[i] = as_type<ushort>(bfloat(x * x + 0.1bf));
}

kernel void integers(device const int* a [[buffer(0)]], device int4* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
    int x = a[i];
    out[i] = int4(popcount(x), clz(x), ctz(x), extract_bits(x, 4u, 9u));
    out[i].x += mulhi(x, 1 << 20) + abs(min(x, 3));
    out[i].w ^= as_type<int>(rotate(as_type<uint>(x), 5u));
}

kernel void lanes(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                  uint lane [[thread_index_in_simdgroup]], uint t [[thread_index_in_threadgroup]],
                  uint n [[threads_per_threadgroup]]) {
    int x = in[t];
    int r[16];
    r[0] = simd_sum(x);
    r[1] = simd_max(x);
    r[2] = simd_min(x);
    r[3] = simd_shuffle(x, 31 - lane);
    r[4] = simd_shuffle_xor(x, 5);
    r[5] = simd_shuffle_down(x, 3);
    r[6] = simd_shuffle_up(x, 3);
    r[7] = simd_broadcast(x, 7);
    r[8] = (int)(uint)(ulong)simd_ballot(x > 0);
    r[9] = simd_prefix_inclusive_sum(x);
    r[10] = simd_prefix_exclusive_sum(x);
    r[11] = quad_sum(x);
    r[12] = quad_broadcast(x, 2);
    r[13] = simd_xor(x);
    r[14] = simd_shuffle_rotate_down(x, 9);
    r[15] = simd_any(x == 3) + 2 * simd_all(x < 1000);
    for (int k = 0; k < 16; k++) out[k * n + t] = r[k];
}

// Sums over the lanes that are active: the others wait at the barrier or have returned.
kernel void divergence(device int* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]],
                       uint t [[thread_index_in_threadgroup]]) {
    int x = 1;
    if (lane < 5) x = simd_sum(1);
    threadgroup_barrier(mem_flags::mem_none);
    out[2 * t] = x;
    if (lane % 2) return;
    out[2 * t + 1] = simd_sum(1);
}

kernel void positions(device uint* out [[buffer(0)]], uint3 grid [[thread_position_in_grid]],
                      ushort2 local [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]],
                      uint3 size [[threads_per_threadgroup]], uint3 groups [[threadgroups_per_grid]],
                      uint3 threads [[threads_per_grid]], uint index [[thread_index_in_threadgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]], uint width [[threads_per_simdgroup]]) {
    device uint* p = out + 12 * (grid.x + threads.x * (grid.y + threads.y * grid.z));
    p[0] = local.x;
    p[1] = local.y;
    p[2] = group.x;
    p[3] = group.y;
    p[4] = group.z;
    p[5] = size.x;
    p[6] = size.y;
    p[7] = groups.x;
    p[8] = groups.y;
    p[9] = index;
    p[10] = simd;
    p[11] = width;
}

kernel void matrix_lanes(device float* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 m;
    m.thread_elements()[0] = 2 * lane;
    m.thread_elements()[1] = 2 * lane + 1;
    simdgroup_store(m, out, 8);
}

template <typename T>
kernel void matrix_product(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]], device float* out [[buffer(2)]],
                           constant uint& stride [[buffer(3)]]) {
    simdgroup_matrix<T, 8, 8> ma, mb;
    simdgroup_float8x8 product, scaled(2.0f);
    simdgroup_load(ma, a, stride, ulong2(3, 1));
    simdgroup_load(mb, b, stride, ulong2(0, 2), true);
    simdgroup_multiply(product, ma, mb);
    simdgroup_multiply_accumulate(product, scaled, product, product);
    simdgroup_store(product, out, 8, ulong2(0, 0), true);
}
#define PRODUCT(T) template [[host_name("matrix_product_" #T)]] kernel void matrix_product<T>( \
    device const T*, device const T*, device float*, constant uint&)
PRODUCT(float);
PRODUCT(half);
PRODUCT(bfloat);

constant int bias [[function_constant(0)]];
constant bool has_scale [[function_constant(1)]];
constant float scale [[function_constant(2)]];
constant int bias_or_seven = is_function_constant_defined(bias) ? bias : 7;
constant bool scales = is_function_constant_defined(has_scale) && has_scale;
constant int twice = 2 * bias_or_seven;

kernel void constants(device float* out [[buffer(0)]], device const float* extra [[buffer(1), function_constant(scales)]],
                      uint i [[thread_position_in_grid]]) {
    out[i] = (int)i + twice;
    if (scales) out[i] = out[i] * scale + extra[i];
}

kernel void atomics(device atomic_uint* counts [[buffer(0)]], device atomic<float>* sum [[buffer(1)]],
                    device const uint* keys [[buffer(2)]], uint i [[thread_position_in_grid]],
                    uint t [[thread_index_in_threadgroup]]) {
    threadgroup atomic_int largest;
    if (t == 0) atomic_store_explicit(&largest, -1, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&counts[keys[i]], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(sum, 0.5f, memory_order_relaxed);
    atomic_fetch_max_explicit(&largest, (int)keys[i], memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 0) atomic_fetch_max_explicit(&counts[16], (uint)atomic_load_explicit(&largest, memory_order_relaxed), memory_order_relaxed);
}

// Threadgroup arrays declared in the kernel, of a type from the header, in two dimensions.
kernel void transpose_tile(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                           uint2 p [[thread_position_in_threadgroup]]) {
    threadgroup float tile[8][9];
    threadgroup Pair pairs[64];
    tile[p.y][p.x] = in[8 * p.y + p.x];
    pairs[8 * p.y + p.x].b = OFFSET;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[8 * p.y + p.x] = tile[p.x][p.y] + pairs[8 * p.x + p.y].b;
}

kernel void functions(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                      uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
    float x = in[i], y = abs(x) + 0.5;
    out[0 * n + i] = exp(x);
    out[1 * n + i] = log(y);
    out[2 * n + i] = rsqrt(y);
    out[3 * n + i] = tanh(x);
    out[4 * n + i] = precise::sin(x);
    out[5 * n + i] = pow(y, x);
    out[6 * n + i] = clamp(x, -0.5f, 0.5f);
    out[7 * n + i] = fma(x, y, 1.0f);
    out[8 * n + i] = sinpi(x);
    out[9 * n + i] = rint(x * 4);
    out[10 * n + i] = select(-1.0f, 1.0f, x > 0);
    out[11 * n + i] = dot(float3(x, y, 1), float3(2, 3, 4));
    out[12 * n + i] = atan2(x, y);
    out[13 * n + i] = fract(x);
    out[14 * n + i] = as_type<float>(as_type<uint>(x) ^ 0x80000000u);
    out[15 * n + i] = mix(x, y, 0.25f);
}
