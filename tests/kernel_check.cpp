// Runs the CPU kernels on one case read from a file, on every instruction set of the processor (or the emulated one),
// with a guard page behind every input, so that a read past the end ends the process, and canaries round every output.
//
// The file, little-endian: int64 {format, rows, tokens, K}, packed weight bytes, x float32 [tokens, K], expected
// float32 weights [rows, K], expected float64 products [tokens, rows], float64 sums of |x||w| [tokens, rows].
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../csrc/cpu/kernels.h"

namespace {

using namespace qmm;

// `bytes` of memory that end where an unreadable page starts.
uint8_t* guarded(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t usable = (bytes + page - 1) / page * page;
  auto* base =
      static_cast<uint8_t*>(mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (base == MAP_FAILED || mprotect(base + usable, page, PROT_NONE) != 0) std::abort();
  return base + usable - bytes;
}

template <class T>
T* read_guarded(FILE* file, size_t count) {
  auto* data = reinterpret_cast<T*>(guarded(count * sizeof(T)));
  if (fread(data, sizeof(T), count, file) != count) std::abort();
  return data;
}

// An output whose both ends are watched.
template <class T>
class Watched {
 public:
  explicit Watched(size_t count) : count_(count), store_(count + 2 * kMargin) {
    memset(store_.data(), 0xAB, store_.size() * sizeof(T));
  }
  T* data() { return store_.data() + kMargin; }
  bool intact() const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(store_.data());
    const size_t margin = kMargin * sizeof(T), end = margin + count_ * sizeof(T);
    for (size_t i = 0; i < margin; ++i) {
      if (bytes[i] != 0xAB || bytes[end + i] != 0xAB) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kMargin = 64;
  size_t count_;
  std::vector<T> store_;
};

struct Case {
  int64_t format, rows, tokens, K;
  const uint8_t* weight;
  const float *x, *weights;
  const double *products, *magnitudes;
  const FormatInfo* info;
};

int check_dequantize(const Case& c, const cpu::FormatKernels& kernels, const char* isa) {
  const int64_t n = c.rows * c.K, blocks = n / c.info->block_weights;
  Watched<float> f32(n);
  Watched<uint16_t> f16(n), bf16(n);
  kernels.dequantize_f32(c.weight, blocks, f32.data());
  kernels.dequantize_f16(c.weight, blocks, f16.data());
  kernels.dequantize_bf16(c.weight, blocks, bf16.data());
  int failures = !f32.intact() + !f16.intact() + !bf16.intact();
  if (failures) printf("%s %s: dequantize wrote outside its output\n", c.info->name, isa);
  for (int64_t i = 0; i < n; ++i) {
    if (memcmp(&f32.data()[i], &c.weights[i], 4) != 0) {
      printf("%s %s: weight %lld is %g, want %g\n", c.info->name, isa, static_cast<long long>(i), f32.data()[i],
             c.weights[i]);
      return failures + 1;
    }
  }
  return failures;
}

int check_product(const Case& c, const cpu::FormatKernels& kernels, const char* isa) {
  // y is wider than the rows, as when threads share it: the columns between must stay untouched
  const int64_t stride = c.rows + 3;
  Watched<float> y(c.tokens * stride);
  kernels.mul_mv({c.weight, c.info->row_bytes(c.K), c.rows, c.x, c.K, c.tokens, y.data(), stride, c.K});
  int failures = !y.intact();
  if (failures) printf("%s %s: mul_mv wrote outside its output\n", c.info->name, isa);
  float canary;
  memset(&canary, 0xAB, sizeof canary);
  for (int64_t m = 0; m < c.tokens; ++m) {
    for (int64_t r = 0; r < stride; ++r) {
      const float got = y.data()[m * stride + r];
      const int64_t i = m * c.rows + r;
      const bool right = r < c.rows ? std::fabs(got - c.products[i]) <= 1e-6 * c.magnitudes[i]
                                    : memcmp(&got, &canary, sizeof got) == 0;
      if (!right) {
        printf("%s %s: token %lld row %lld is %g, want %g\n", c.info->name, isa, static_cast<long long>(m),
               static_cast<long long>(r), got, r < c.rows ? c.products[i] : canary);
        return failures + 1;
      }
    }
  }
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const char* isas[8];
  const int isa_count = cpu::available_isas(isas, 8);
  for (int i = 0; i < isa_count; ++i) printf("isa %s\n", isas[i]);
  int failures = 0;
  for (int arg = 1; arg < argc; ++arg) {
    FILE* file = fopen(argv[arg], "rb");
    int64_t head[4];
    if (file == nullptr || fread(head, sizeof head, 1, file) != 1) std::abort();
    Case c{head[0], head[1], head[2], head[3], nullptr, nullptr, nullptr, nullptr, nullptr, find_format(head[0])};
    c.weight = read_guarded<uint8_t>(file, c.rows * c.info->row_bytes(c.K));
    c.x = read_guarded<float>(file, c.tokens * c.K);
    c.weights = read_guarded<float>(file, c.rows * c.K);
    c.products = read_guarded<double>(file, c.tokens * c.rows);
    c.magnitudes = read_guarded<double>(file, c.tokens * c.rows);
    fclose(file);
    for (int i = 0; i < isa_count; ++i) {
      if (!cpu::set_isa(isas[i])) std::abort();
      const cpu::FormatKernels& kernels = cpu::format_kernels(static_cast<Format>(c.format));
      failures += check_dequantize(c, kernels, isas[i]) + check_product(c, kernels, isas[i]);
    }
  }
  printf("%d failures in %d cases\n", failures, argc - 1);
  return failures != 0;
}
