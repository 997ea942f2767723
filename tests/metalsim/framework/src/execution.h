// Between Metal's objects and the fiber engine: programs, and the dispatches that run them. Plain C++.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../metalsim_framework.h"

namespace metalsim {

struct KernelParameter {
  enum Kind { buffer, threadgroup, other } kind;
  int index;
  bool constant, read_only, conditional;
};
struct KernelInfo {
  std::vector<KernelParameter> parameters;
  uint64_t max_threads;                      // of a threadgroup
  std::map<int, unsigned> least_bytes = {};  // that a buffer must have, where the kernel says so
};
struct ConstantInfo {
  int index;
  std::string name, type;
  unsigned size;
};
// A value given for a function constant, by index or (index -1) by name. The type is Metal's name for it.
struct GivenConstant {
  int index;
  std::string name, type, bytes;
};

struct Image;  // a loaded shared object

// A compiled shader. The fast and the checked code are built when first needed, by the package's own compiler in a
// process of its own: calling into the Python of this process could wait for a lock that waits for us.
class Program {
 public:
  // Throws std::runtime_error with the compiler's message.
  Program(std::string source, std::vector<std::string> defines);
  ~Program();
  const std::map<std::string, KernelInfo>& kernels() const { return kernels_; }
  const std::vector<ConstantInfo>& constants() const { return constants_; }
  Image& image(bool checked);

 private:
  std::string source_;
  std::vector<std::string> defines_;
  std::mutex mutex_;
  std::unique_ptr<Image> images_[2];
  std::map<std::string, KernelInfo> kernels_;
  std::vector<ConstantInfo> constants_;
};

struct BoundBuffer {
  char* address;    // with the offset
  uint64_t size;    // from there to the buffer's end
  uint64_t offset;  // within the buffer
};
struct Dispatch {
  std::shared_ptr<Program> program;
  std::string kernel;
  std::vector<GivenConstant> constants;
  std::map<int, BoundBuffer> buffers;
  std::map<int, uint64_t> threadgroup_bytes;
  uint64_t grid[3], threadgroup[3];
};

// Runs it on this thread (and the engine's own). Returns what went wrong, or nothing.
std::optional<std::string> run(const Dispatch& dispatch);

constexpr uint32_t kLifo = 1, kRandom = 2;  // values of the setting `order`
metalsim_settings settings();

}  // namespace metalsim
