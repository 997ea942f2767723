// The kernels for x86-64 processors with AVX-512. The target is chosen here and not by a compiler flag, so that
// one set of flags builds every file; it is set after the standard headers, whose inline functions the linker
// shares with code that runs anywhere, and holds to the end of the file, where templates are instantiated.
#if defined(__x86_64__)

// GCC 12's own intrinsics start from a register that they leave undefined on purpose, and warn about it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "qmm_iq_grids.h"
#include "simd/isa.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")
#endif

#define QMM_ISA avx512
#define QMM_ISA_AVX512
#include "kernels_impl.h"

namespace qmm::cpu {
constexpr IsaKernels kAvx512Kernels = avx512::make_kernels("avx512");
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
