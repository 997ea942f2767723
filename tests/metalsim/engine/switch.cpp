// The registers that a call must keep go to the old stack, those on the new one come back.
#include "switch.h"

#if defined(__x86_64__)

asm(R"(
.text
.globl metalsim_switch
.hidden metalsim_switch
metalsim_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

void* metalsim::new_stack(void* top, void (*entry)()) {
  void** stack = (void**)top;
  *--stack = nullptr;  // where a caller's return address would be
  *--stack = (void*)entry;
  for (int i = 0; i < 6; i++) *--stack = nullptr;
  return stack;
}

#elif defined(__aarch64__)

asm(R"(
.text
.globl metalsim_switch
.hidden metalsim_switch
metalsim_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");

void* metalsim::new_stack(void* top, void (*entry)()) {
  void** stack = (void**)top - 20;
  for (int i = 0; i < 20; i++) stack[i] = nullptr;
  stack[11] = (void*)entry;  // x30, to which `ret` goes
  return stack;
}

#else
#error "metalsim's fiber switch is written for x86-64 and arm64"
#endif
