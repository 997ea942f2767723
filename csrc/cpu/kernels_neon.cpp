// The kernels for AArch64, where NEON is part of every processor: no target to choose.
#if defined(__aarch64__)

#include <arm_neon.h>

#define QMM_ISA neon
#define QMM_ISA_NEON
#include "kernels_impl.h"

namespace qmm::cpu {
constexpr IsaKernels kNeonKernels = neon::make_kernels("neon");
}

#endif
