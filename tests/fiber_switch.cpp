// Two stacks that call each other and keep values in registers: run by tests/test_metalsim_divergence.py for x86-64
// and, under qemu, for arm64.
#include <cstdio>
#include <cstdlib>

#include "switch.h"

static void *main_stack, *fiber_stack;
static long received;

static void fiber() {
  for (long pass = 1;; pass++) {
    long a = pass, b = 2 * pass, c = 3 * pass;
    double d = 0.5 * pass, e = 0.25 * pass;
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c));
    metalsim::metalsim_switch(&fiber_stack, main_stack);
    received = a + b + c + (long)(d + e);
    if ((unsigned long)&a % alignof(long)) abort();
  }
}

int main() {
  fiber_stack = metalsim::new_stack((char*)aligned_alloc(64, 1 << 16) + (1 << 16), fiber);
  double kept[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  long sum = 0;
  for (long i = 0; i < 1000; i++) {
    for (double& k : kept) k *= 1.001;
    metalsim::metalsim_switch(&main_stack, fiber_stack);
    if (i > 0 && received != 6 * i + (long)(0.75 * i)) return 1;
    sum += received;
  }
  printf("%ld %.3f\n", sum, kept[0] + kept[7]);
}
