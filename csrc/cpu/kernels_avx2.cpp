// The kernels for x86-64 processors with AVX2, FMA and F16C. The target is chosen here and not by a compiler flag, so
// that one set of flags builds every file; it is set after the standard headers, whose inline functions the linker
// shares with code that runs anywhere, and holds to the end of the file, where templates are instantiated.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "qmm_iq_grids.h"
#include "simd/isa.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif

#define QMM_ISA avx2
#define QMM_ISA_AVX2
#include "kernels_impl.h"

namespace qmm::cpu {
constexpr IsaKernels kAvx2Kernels = avx2::make_kernels("avx2");
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
