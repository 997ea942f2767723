#include <metal_stdlib>
using namespace metal;

struct Sizes { uint m, n, k; };

// C[m, n] = A[m, k] B[n, k]^T in tiles of 32 x 32 x 32 by four simdgroups.
kernel void tiled(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]], device float* c [[buffer(2)]],
                  constant Sizes& s [[buffer(3)]], threadgroup half* memory [[threadgroup(0)]],
                  uint2 group [[threadgroup_position_in_grid]], ushort t [[thread_index_in_threadgroup]],
                  ushort simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup half* ta = memory;
    threadgroup half* tb = memory + 32 * 32;
    const uint row = group.y * 32, column = group.x * 32;
    simdgroup_float8x8 acc[4];
    for (short i = 0; i < 4; i++) acc[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < s.k; k += 32) {
        const ushort r = t / 4, q = t % 4 * 8;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        *(threadgroup half4*)(ta + r * 32 + q) = *(device const half4*)(a + (row + r) * s.k + k + q);
        *(threadgroup half4*)(ta + r * 32 + q + 4) = *(device const half4*)(a + (row + r) * s.k + k + q + 4);
        *(threadgroup half4*)(tb + r * 32 + q) = *(device const half4*)(b + (column + r) * s.k + k + q);
        *(threadgroup half4*)(tb + r * 32 + q + 4) = *(device const half4*)(b + (column + r) * s.k + k + q + 4);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (short kk = 0; kk < 4; kk++) {
            simdgroup_half8x8 ma, mb;
            simdgroup_load(ma, ta + simd * 8 * 32 + kk * 8, 32);
            for (short i = 0; i < 4; i++) {
                simdgroup_load(mb, tb + i * 8 * 32 + kk * 8, 32, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(acc[i], ma, mb, acc[i]);
            }
        }
    }
    threadgroup float* out = (threadgroup float*)memory;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (short i = 0; i < 4; i++) simdgroup_store(acc[i], out + simd * 8 * 32 + i * 8, 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort i = t; i < 32 * 32; i += 128) {
        const uint r = row + i / 32, col = column + i % 32;
        if (r < s.m && col < s.n) c[r * s.n + col] = out[i];
    }
}
