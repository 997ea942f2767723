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

struct Loop;

// Where a thread stands in the grid (`index` counts within the threadgroup), and in which passes of which loops.
struct Thread {
  unsigned index, lane;
  Uint3 in_group, in_grid;
  Loop* loop;            // the innermost
  unsigned long passes;  // a hash of the passes of all loops round this place
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

// A call whose arguments (which stand behind its first token) run before it; by line and column of the C++ text.
struct LateCall {
  const char* file;
  unsigned line, column, late_line, late_column;
};
struct LateCalls {
  const LateCall* calls;
  unsigned count;
};

enum class AtomicAccess : int { load, store, update };
enum class MatrixOperation : int { load, store, multiply_accumulate };

struct Current {
  Thread* thread;
  const Launch* launch;
};
extern "C" __attribute__((visibility("default"), tls_model("initial-exec"))) thread_local Current metalsim_current;
METALSIM_INLINE const Thread& this_thread() { return *metalsim_current.thread; }
METALSIM_INLINE const Launch& this_launch() { return *metalsim_current.launch; }
METALSIM_INLINE unsigned this_lane() { return metalsim_current.thread->lane; }

METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_enter_loop(Loop* loop);

// Stands round each loop in which lanes can meet (the source pass puts it there), so that lanes in different passes are
// told apart. next() is called before each condition, body or step that begins something new.
struct Loop {
  Loop* outer;
  Thread* thread;
  unsigned long outer_passes;
  unsigned pass;
  const void* site;  // the call that entered the loop, which says where it stands
  METALSIM_INLINE Loop() : thread(metalsim_current.thread), pass(0) {
    outer = thread->loop;
    outer_passes = thread->passes;
    thread->loop = this;
    metalsim_enter_loop(this);
  }
  METALSIM_INLINE ~Loop() {
    thread->loop = outer;
    thread->passes = outer_passes;
  }
  METALSIM_INLINE bool next() {
    thread->passes = (outer_passes + ++pass) * 0x9e3779b97f4a7c15;
    return true;
  }
};

METALSIM_ENGINE METALSIM_CONVERGENT Exchange* metalsim_simd_exchange(const void* value, unsigned size);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_simd_barrier(int memory_flags);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_group_barrier(int memory_flags, const char* file, int line);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_inactive_lane(int lane);
METALSIM_ENGINE METALSIM_CONVERGENT void metalsim_matrix_operation(MatrixOperation operation);
METALSIM_ENGINE void metalsim_check_tile(const void* first, unsigned long row_bytes, unsigned size);
METALSIM_ENGINE void metalsim_atomic_access(const void* address, unsigned size, AtomicAccess access);
METALSIM_ENGINE void* metalsim_threadgroup_variable(ThreadgroupSlot* slot, unsigned long size);

}  // namespace metalsim
