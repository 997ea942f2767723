// What tests and ../framework.py ask of the simulated Metal framework.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How kernels run. Read from METALSIM_CHECK, _ORDER, _SEED, _THREADS, _COMMIT and _ABORT when the framework is first
// used; order is 0 fifo, 1 lifo, 2 random.
struct metalsim_settings {
  uint32_t check, order, threads;
  uint64_t seed;
  uint32_t eager;            // run command buffers on a thread from commit on, not as late as is allowed
  uint32_t abort_on_misuse;  // end the process where Metal's validation would, not fail the command buffer
};
void metalsim_get_settings(struct metalsim_settings* settings);
void metalsim_set_settings(const struct metalsim_settings* settings);

// Objective-C objects alive, of one class or (NULL) of all.
long metalsim_live_objects(const char* class_name);

// Dispatches that ran while somebody recorded. `counters` is the engine's struct of that name.
struct metalsim_dispatch_record {
  char kernel[256];
  uint32_t grid[3], threadgroup[3];
  const void* counters;
};
size_t metalsim_start_recording(void);                                           // where the new ones will begin
size_t metalsim_recorded(void);                                                  // where they end
void metalsim_record_at(size_t index, struct metalsim_dispatch_record* record);  // valid until recording stops
void metalsim_stop_recording(void);

#ifdef __cplusplus
}
#endif
