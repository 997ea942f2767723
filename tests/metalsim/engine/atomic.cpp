// Atomics by address. The fast build assumes no alignment of anything, so clang calls these instead of emitting one
// instruction; the functions bear the names that clang's calls have.
#include <cstddef>
#include <cstdint>

template <class T>
static void load(const void* from, void* to) {
  *(T*)to = __atomic_load_n((const T*)from, __ATOMIC_RELAXED);
}
template <class T>
static void store(void* to, const void* from) {
  __atomic_store_n((T*)to, *(const T*)from, __ATOMIC_RELAXED);
}
template <class T>
static bool compare_exchange(void* object, void* expected, const void* desired) {
  return __atomic_compare_exchange_n((T*)object, (T*)expected, *(const T*)desired, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

extern "C" {
void metalsim_atomic_load(size_t size, const void* from, void* to, int) asm("__atomic_load");
void metalsim_atomic_store(size_t size, void* to, const void* from, int) asm("__atomic_store");
bool metalsim_atomic_compare_exchange(size_t size, void* object, void* expected, const void* desired, int,
                                      int) asm("__atomic_compare_exchange");

void metalsim_atomic_load(size_t size, const void* from, void* to, int) {
  size == 1 ? load<uint8_t>(from, to) : size == 4 ? load<uint32_t>(from, to) : load<uint64_t>(from, to);
}
void metalsim_atomic_store(size_t size, void* to, const void* from, int) {
  size == 1 ? store<uint8_t>(to, from) : size == 4 ? store<uint32_t>(to, from) : store<uint64_t>(to, from);
}
bool metalsim_atomic_compare_exchange(size_t size, void* object, void* expected, const void* desired, int, int) {
  if (size == 1) return compare_exchange<uint8_t>(object, expected, desired);
  if (size == 4) return compare_exchange<uint32_t>(object, expected, desired);
  return compare_exchange<uint64_t>(object, expected, desired);
}
}
