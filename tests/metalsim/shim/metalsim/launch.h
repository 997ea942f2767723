// How a kernel's parameters get their values, and how kernels and function constants make themselves known.
#pragma once

namespace metalsim {

METALSIM_INLINE constexpr bool always() { return true; }

// A parameter's source: Buffer and Threadgroup carry the index; a parameter whose function constant is false is null.
template <int Index, const bool* Condition = nullptr>
struct Buffer {};
template <int Index, const bool* Condition = nullptr>
struct Threadgroup {};

template <class A>
struct Pointee {
  static METALSIM_INLINE A from(void* address) { return (A)address; }
};
template <class T>
struct Pointee<T&> {
  static METALSIM_INLINE T& from(void* address) { return *(T*)address; }
};
template <const bool* Condition>
METALSIM_INLINE bool present() {
  if constexpr (Condition == nullptr)
    return true;
  else
    return *Condition;
}

template <class Source, class A>
struct Argument;
template <int Index, const bool* Condition, class A>
struct Argument<Buffer<Index, Condition>, A> {
  static METALSIM_INLINE A get() {
    return Pointee<A>::from(present<Condition>() ? this_launch().buffers[Index] : nullptr);
  }
};
template <int Index, const bool* Condition, class A>
struct Argument<Threadgroup<Index, Condition>, A> {
  static METALSIM_INLINE A get() {
    return Pointee<A>::from(present<Condition>() ? this_launch().threadgroup_memory[Index] : nullptr);
  }
};

// A position in one, two or three dimensions, whichever the parameter has.
template <class A>
struct Position {
  static METALSIM_INLINE A from(Uint3 p) { return (A)p.x; }
};
template <class T>
struct Position<metal::vec<T, 2>> {
  static METALSIM_INLINE metal::vec<T, 2> from(Uint3 p) { return metal::vec<T, 2>(p.x, p.y); }
};
template <class T>
struct Position<metal::vec<T, 3>> {
  static METALSIM_INLINE metal::vec<T, 3> from(Uint3 p) { return metal::vec<T, 3>(p.x, p.y, p.z); }
};
METALSIM_INLINE Uint3 scalar(unsigned x) { return Uint3{x, 0, 0}; }
METALSIM_INLINE unsigned threads_in_group() {
  const Uint3& s = this_launch().group_size;
  return s.x * s.y * s.z;
}

#define METALSIM_ATTRIBUTE(name, expression)                                                     \
  struct name {};                                                                                \
  template <class A>                                                                             \
  struct Argument<name, A> {                                                                     \
    static METALSIM_INLINE A get() { return Position<metal::remove_cv_t<A>>::from(expression); } \
  };
METALSIM_ATTRIBUTE(thread_position_in_grid, this_thread().in_grid)
METALSIM_ATTRIBUTE(thread_position_in_threadgroup, this_thread().in_group)
METALSIM_ATTRIBUTE(threadgroup_position_in_grid, this_launch().group_position)
METALSIM_ATTRIBUTE(threads_per_threadgroup, this_launch().group_size)
METALSIM_ATTRIBUTE(dispatch_threads_per_threadgroup, this_launch().full_group_size)
METALSIM_ATTRIBUTE(threadgroups_per_grid, this_launch().groups)
METALSIM_ATTRIBUTE(threads_per_grid, this_launch().grid_size)
METALSIM_ATTRIBUTE(grid_size, this_launch().grid_size)
METALSIM_ATTRIBUTE(grid_origin, (Uint3{0, 0, 0}))
METALSIM_ATTRIBUTE(thread_index_in_threadgroup, scalar(this_thread().index))
METALSIM_ATTRIBUTE(thread_index_in_simdgroup, scalar(this_thread().lane))
METALSIM_ATTRIBUTE(thread_index_in_quadgroup, scalar(this_thread().lane % 4))
METALSIM_ATTRIBUTE(simdgroup_index_in_threadgroup, scalar(this_thread().index / 32))
METALSIM_ATTRIBUTE(quadgroup_index_in_threadgroup, scalar(this_thread().index / 4))
METALSIM_ATTRIBUTE(simdgroups_per_threadgroup, scalar((threads_in_group() + 31) / 32))
METALSIM_ATTRIBUTE(quadgroups_per_threadgroup, scalar((threads_in_group() + 3) / 4))
METALSIM_ATTRIBUTE(dispatch_simdgroups_per_threadgroup, scalar((threads_in_group() + 31) / 32))
METALSIM_ATTRIBUTE(threads_per_simdgroup, scalar(32))
METALSIM_ATTRIBUTE(thread_execution_width, scalar(32))

// Bytes that a buffer must have at least: what a parameter refers to. Pointers say nothing of it.
struct LeastBytes {
  int buffer;
  unsigned bytes;
};
template <class Source, class A>
constexpr LeastBytes kLeastBytes = {-1, 0};
template <int Index, class T>
constexpr LeastBytes kLeastBytes<Buffer<Index>, T&> = {Index, sizeof(T)};

template <auto Function, class... Sources>
struct Entry {
  template <class... A>
  static METALSIM_INLINE void call(void (*)(A...)) {
    Function(Argument<Sources, A>::get()...);
  }
  static void run() { call(Function); }
  template <class... A>
  static const LeastBytes* least_bytes(void (*)(A...)) {
    static const LeastBytes list[] = {kLeastBytes<Sources, A>..., {-1, 0}};
    return list;
  }
};

// Each shader library has its own tables (hidden symbols); the Python side walks them.
struct KernelRecord {
  const char* name;
  void (*run)();
  KernelRecord* next;
  const LeastBytes* least_bytes;  // one for each parameter
  unsigned parameters;
};
struct ConstantRecord {
  int index;
  const char* name;
  void* value;
  unsigned size;
  bool* defined;
  void (*derive)();
  ConstantRecord* next;
};
inline KernelRecord* kernels = nullptr;
inline ConstantRecord* constants = nullptr;
struct RegisterKernel : KernelRecord {
  template <auto Function, class... Sources>
  RegisterKernel(const char* host_name, Entry<Function, Sources...> entry)
      : KernelRecord{host_name, entry.run, kernels, entry.least_bytes(Function), sizeof...(Sources)} {
    kernels = this;
  }
};
// Constants stay in the order of their declaration, so that derived ones can be computed front to back.
struct RegisterConstant : ConstantRecord {
  RegisterConstant(int i, const char* n, void* v, unsigned s, bool* d)
      : ConstantRecord{i, n, v, s, d, nullptr, nullptr} {
    append();
  }
  explicit RegisterConstant(void (*f)()) : ConstantRecord{-1, nullptr, nullptr, 0, nullptr, f, nullptr} { append(); }
  void append() {
    ConstantRecord** end = &constants;
    while (*end) end = &(*end)->next;
    *end = this;
  }
};

inline LateCalls late_calls;
struct RegisterLateCalls {
  template <unsigned N>
  RegisterLateCalls(const LateCall (&calls)[N]) {
    late_calls = {calls, N};
  }
};

template <class T>
METALSIM_INLINE T& threadgroup_variable(ThreadgroupSlot& slot) {
  return *(T*)metalsim_threadgroup_variable(&slot, sizeof(T));
}

extern "C" char __ehdr_start __attribute__((visibility("hidden")));
extern "C" char _end __attribute__((visibility("hidden")));
extern "C" __attribute__((visibility("default"), used)) inline KernelRecord* metalsim_kernels() { return kernels; }
extern "C" __attribute__((visibility("default"), used)) inline ConstantRecord* metalsim_constants() {
  return constants;
}
extern "C" __attribute__((visibility("default"), used)) inline const LateCalls* metalsim_late_calls() {
  return &late_calls;
}
extern "C" __attribute__((visibility("default"), used)) inline char* metalsim_image_begin() { return &__ehdr_start; }
extern "C" __attribute__((visibility("default"), used)) inline char* metalsim_image_end() { return &_end; }

}  // namespace metalsim
