// Stands in for metalsim/engine.h in strict mode.
#pragma once

namespace metalsim {

struct Exchange {
  unsigned mask;
  bool reduced;
  unsigned char result[64], slots[32][64];
};
enum class AtomicAccess : int { load, store, update };
enum class MatrixOperation : int { load, store, multiply_accumulate };

unsigned this_lane();
Exchange* metalsim_simd_exchange(const void* value, unsigned size);
void metalsim_simd_barrier(int memory_flags);
void metalsim_group_barrier(int memory_flags, const __constant char* file, int line);
void metalsim_inactive_lane(int lane);
void metalsim_matrix_operation(MatrixOperation operation);
void metalsim_atomic_access(const void* address, unsigned size, AtomicAccess access);

}  // namespace metalsim
