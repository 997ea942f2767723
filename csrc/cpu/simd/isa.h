// What one instruction set's translation unit (kernels_avx512.cpp and its sisters) hands to the dispatcher.
#pragma once

#include "../kernels.h"

#define QMM_INLINE inline __attribute__((always_inline))

namespace qmm::cpu {

inline constexpr int kFormatCount = sizeof(kFormats) / sizeof(kFormats[0]);

struct IsaKernels {
  const char* name;
  FormatKernels formats[kFormatCount];  // in the order of kFormats
  ConvertKernels convert;
};

// Each is defined only where the compiler targets that architecture.
extern const IsaKernels kAvx512Kernels;
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kNeonKernels;
extern const IsaKernels kGenericKernels;

}  // namespace qmm::cpu
