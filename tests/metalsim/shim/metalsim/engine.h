// What shaders see of the fiber engine. No C library, so that it can stand before any shader.
#pragma once

#define METALSIM_ENGINE extern "C" __attribute__((visibility("default")))
// The optimiser must neither merge two calls nor make one depend on a further condition: a call's address is the
// identity of the operation at which lanes meet.
#define METALSIM_CONVERGENT __attribute__((convergent, nomerge))

namespace metalsim {

struct Uint3 {
  unsigned x, y, z;
};

// Where a thread stands in the grid. `index` counts within the threadgroup.
struct Thread {
  unsigned index, lane;
  Uint3 in_group, in_grid;
};

struct Launch {
  void* buffers[31];
  void* threadgroup_memory[31];
  Uint3 group_position, groups, group_size, full_group_size, grid_size;
};

// The values that a simdgroup's active lanes brought to an operation.
struct Exchange {
  unsigned mask;
  bool reduced;
  alignas(64) unsigned char result[64];
  alignas(64) unsigned char slots[32][64];
};

// A variable in threadgroup memory that a kernel's body declares; `id` is given at its first use.
struct ThreadgroupSlot {
  unsigned id;
};

enum class MatrixOperation : int { load, store, multiply_accumulate };

struct Current {
  Thread* thread;
  const Launch* launch;
};
extern "C" __attribute__((visibility("default"), tls_model("initial-exec"))) thread_local Current metalsim_current;
METALSIM_INLINE const Thread& this_thread() { return *metalsim_current.thread; }
METALSIM_INLINE const Launch& this_launch() { return *metalsim_current.launch; }
METALSIM_INLINE unsigned this_lane() { return metalsim_current.thread->lane; }

METALSIM_ENGINE METALSIM_CONVERGENT Exchange* metalsim_simd_exchange(const void* value, unsigned size);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_simd_barrier(int memory_flags);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_group_barrier(int memory_flags, const char* file, int line,
                                                                int column);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_inactive_lane(int lane);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_matrix_operation(MatrixOperation operation);
METALSIM_ENGINE void metalsim_check_tile(const void* first, unsigned long row_bytes, unsigned size);
METALSIM_ENGINE void metalsim_atomic_access(const void* address, unsigned size, bool reads);
METALSIM_ENGINE void* metalsim_threadgroup_variable(ThreadgroupSlot* slot, unsigned long size);

}  // namespace metalsim
