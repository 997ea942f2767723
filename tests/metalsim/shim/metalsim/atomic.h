// Atomics on device and threadgroup memory, all with relaxed order as in Metal.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed = 0, memory_order_seq_cst = 5 };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

// One update by compare and exchange serves every operation and every type. Checked mode hears of it once.
#define METALSIM_ATOMICS(space)                                                                                       \
  template <class T>                                                                                                  \
  METALSIM_INLINE T atomic_load_explicit(const volatile space atomic<T>* object, memory_order) {                      \
    metalsim::metalsim_atomic_access((const void*)object, sizeof(T), metalsim::AtomicAccess::load);                   \
    T value;                                                                                                          \
    __atomic_load(&object->value, (T*)&value, __ATOMIC_RELAXED);                                                      \
    return value;                                                                                                     \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  METALSIM_INLINE void atomic_store_explicit(volatile space atomic<T>* object, type_identity_t<T> value,              \
                                             memory_order) {                                                          \
    metalsim::metalsim_atomic_access((const void*)object, sizeof(T), metalsim::AtomicAccess::store);                  \
    __atomic_store(&object->value, (T*)&value, __ATOMIC_RELAXED);                                                     \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  METALSIM_INLINE bool compare_exchange(volatile space atomic<T>* object, METALSIM_THREAD T* expected, T desired) {   \
    return __atomic_compare_exchange(&object->value, (T*)expected, (T*)&desired, true, __ATOMIC_RELAXED,              \
                                     __ATOMIC_RELAXED);                                                               \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  METALSIM_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>* object,                        \
                                                             METALSIM_THREAD T* expected, type_identity_t<T> desired, \
                                                             memory_order, memory_order) {                            \
    metalsim::metalsim_atomic_access((const void*)object, sizeof(T), metalsim::AtomicAccess::update);                 \
    return compare_exchange(object, expected, (T)desired);                                                            \
  }                                                                                                                   \
  template <class T, class F>                                                                                         \
  METALSIM_INLINE T atomic_update(volatile space atomic<T>* object, F f) {                                            \
    metalsim::metalsim_atomic_access((const void*)object, sizeof(T), metalsim::AtomicAccess::update);                 \
    T before;                                                                                                         \
    __atomic_load(&object->value, (T*)&before, __ATOMIC_RELAXED);                                                     \
    while (!compare_exchange(object, (METALSIM_THREAD T*)&before, (T)f(before))) {                                    \
    }                                                                                                                 \
    return before;                                                                                                    \
  }                                                                                                                   \
  METALSIM_ATOMIC_UPDATE(space, exchange_explicit, operand)                                                           \
  METALSIM_ATOMIC_UPDATE(space, fetch_add_explicit, before + operand)                                                 \
  METALSIM_ATOMIC_UPDATE(space, fetch_sub_explicit, before - operand)                                                 \
  METALSIM_ATOMIC_UPDATE(space, fetch_min_explicit, operand < before ? operand : before)                              \
  METALSIM_ATOMIC_UPDATE(space, fetch_max_explicit, before < operand ? operand : before)                              \
  METALSIM_ATOMIC_UPDATE(space, fetch_and_explicit, before& operand)                                                  \
  METALSIM_ATOMIC_UPDATE(space, fetch_or_explicit, before | operand)                                                  \
  METALSIM_ATOMIC_UPDATE(space, fetch_xor_explicit, before ^ operand)
#define METALSIM_ATOMIC_UPDATE(space, name, expression)                                                         \
  template <class T>                                                                                            \
  METALSIM_INLINE T atomic_##name(volatile space atomic<T>* object, type_identity_t<T> operand, memory_order) { \
    return atomic_update(object, [operand](T before) { return (T)(expression); });                              \
  }
#ifdef METALSIM_STRICT
METALSIM_ATOMICS(__global)
METALSIM_ATOMICS(__local)
#else
METALSIM_ATOMICS()
#endif

}  // namespace metal
