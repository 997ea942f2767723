// Which instruction set's kernels run: the best that this processor has, or the one a caller asked for.
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <atomic>
#include <cstring>

#include "simd/isa.h"

namespace qmm::cpu {
namespace {

struct Isa {
  const IsaKernels* kernels;
  bool (*supported)();
};

bool always() { return true; }

#if defined(__x86_64__)
// __builtin_cpu_supports also asks the operating system whether it saves the wide registers.
bool has_avx2() {
  unsigned eax, ebx, ecx = 0, edx;
  // Not every compiler's __builtin_cpu_supports knows F16C; its registers are AVX's.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

// Best first; the last runs anywhere.
constexpr Isa kIsas[] = {
#if defined(__x86_64__)
    {&kAvx512Kernels, has_avx512},
    {&kAvx2Kernels, has_avx2},
#elif defined(__aarch64__)
    {&kNeonKernels, always},
#endif
    {&kGenericKernels, always},
};

const IsaKernels* best() {
  for (const Isa& isa : kIsas) {
    if (isa.supported()) return isa.kernels;
  }
  return &kGenericKernels;
}

std::atomic<const IsaKernels*>& current() {
  static std::atomic<const IsaKernels*> kernels{best()};
  return kernels;
}

// Format id -> place in kFormats.
constexpr auto kPlaces = [] {
  std::array<int, 64> places{};
  for (int i = 0; i < kFormatCount; ++i) places[static_cast<size_t>(kFormats[i].id)] = i;
  return places;
}();

}  // namespace

const FormatKernels& format_kernels(Format format) {
  return current().load()->formats[kPlaces[static_cast<size_t>(format)]];
}

const ConvertKernels& convert_kernels() { return current().load()->convert; }

int available_isas(const char** names, int capacity) {
  int count = 0;
  for (const Isa& isa : kIsas) {
    if (count < capacity && isa.supported()) names[count++] = isa.kernels->name;
  }
  return count;
}

const char* current_isa() { return current().load()->name; }

bool set_isa(const char* name) {
  for (const Isa& isa : kIsas) {
    if (std::strcmp(isa.kernels->name, name) == 0 && isa.supported()) {
      current() = isa.kernels;
      return true;
    }
  }
  return false;
}

}  // namespace qmm::cpu
