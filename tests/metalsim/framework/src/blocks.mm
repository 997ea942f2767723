// The blocks runtime: the four functions and the layouts that clang's code for `^{ ... }` expects (its block ABI).
#import <Foundation/Foundation.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kHasCopyDispose = 1 << 25;
// For variables marked __block: on the heap already.
constexpr int kOnHeap = 1 << 24;
// What a captured variable is.
constexpr int kObject = 3, kBlock = 7, kByReference = 8, kFromByReference = 128;

struct Descriptor {
  unsigned long reserved, size;
  void (*copy)(void* to, const void* from);
  void (*dispose)(const void* block);
};
struct Block {
  void* isa;
  int flags;
  std::atomic<int> owners;
  void (*invoke)(void);
  Descriptor* descriptor;
};
// A __block variable; all that know it reach it through `forwarding`.
struct ByReference {
  void* isa;
  ByReference* forwarding;
  int flags;
  int size;
  void (*keep)(ByReference* to, ByReference* from);
  void (*destroy)(ByReference* variable);
};
// The high half of a heap variable's flags says what it has, the low half counts owners by two.
std::atomic_ref<int> owners_of(ByReference* variable) { return std::atomic_ref<int>(variable->flags); }

ByReference* share(ByReference* variable) {
  variable = variable->forwarding;
  if (variable->flags & kOnHeap) {
    owners_of(variable).fetch_add(2, std::memory_order_relaxed);
    return variable;
  }
  auto* moved = (ByReference*)malloc(variable->size);
  memcpy((void*)moved, variable, variable->size);
  moved->flags |= kOnHeap | 4;  // two owners: the block, and the stack frame that made the variable
  moved->forwarding = variable->forwarding = moved;
  if (variable->flags & kHasCopyDispose) moved->keep(moved, variable);
  return moved;
}
void unshare(ByReference* variable) {
  variable = variable->forwarding;
  if (!(variable->flags & kOnHeap)) return;
  int before = owners_of(variable).fetch_sub(2, std::memory_order_acq_rel);
  if ((before & 0xfffe) != 2) return;
  if (variable->flags & kHasCopyDispose) variable->destroy(variable);
  free(variable);
}

}  // namespace

extern "C" {

void* _NSConcreteStackBlock[32];
void* _NSConcreteGlobalBlock[32];
static void* heap_block[32];

void* _Block_copy(const void* argument) {
  auto* block = (Block*)argument;
  if (!block || block->isa == _NSConcreteGlobalBlock) return block;
  if (block->isa == heap_block) {
    block->owners.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
  auto* moved = (Block*)malloc(block->descriptor->size);
  memcpy((void*)moved, block, block->descriptor->size);
  moved->isa = heap_block;
  moved->owners = 1;
  if (block->flags & kHasCopyDispose) block->descriptor->copy(moved, block);
  return moved;
}
void _Block_release(const void* argument) {
  auto* block = (Block*)argument;
  if (!block || block->isa != heap_block) return;
  if (block->owners.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (block->flags & kHasCopyDispose) block->descriptor->dispose(block);
  free(block);
}
void _Block_object_assign(void* place, const void* object, const int kind) {
  auto** to = (const void**)place;
  if (kind & kFromByReference)
    *to = object;  // a __block variable does not own what it holds
  else if (kind & kByReference)
    *to = share((ByReference*)object);
  else if ((kind & kBlock) == kBlock)
    *to = _Block_copy(object);
  else if ((kind & kObject) == kObject)
    *to = (const void*)[(id)object retain];
}
void _Block_object_dispose(const void* object, const int kind) {
  if (kind & kFromByReference) return;
  if (kind & kByReference)
    unshare((ByReference*)object);
  else if ((kind & kBlock) == kBlock)
    _Block_release(object);
  else if ((kind & kObject) == kObject)
    [(id)object release];
}
}
