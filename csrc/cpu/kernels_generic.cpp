// The kernels for any processor that the compiler targets.
#define QMM_ISA generic
#include "kernels_impl.h"

namespace qmm::cpu {
constexpr IsaKernels kGenericKernels = generic::make_kernels("generic");
}
