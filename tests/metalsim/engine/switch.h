// Switching between stacks.
#pragma once

namespace metalsim {

// What metalsim_switch takes: a stack that begins in `entry`, which must never return. `top` is a multiple of 16.
void* new_stack(void* top, void (*entry)());

extern "C" void metalsim_switch(void** save, void* to);

}  // namespace metalsim
