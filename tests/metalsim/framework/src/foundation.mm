// NSObject and the autorelease pool on GNU libobjc: counting by hand, objects counted by class, freed ones kept as
// zombies on demand.
#import <Foundation/Foundation.h>
#include <objc/runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../metalsim_framework.h"

namespace {

// Stands before each object. Zero is one owner, as in Cocoa.
struct Header {
  std::atomic<long> extra_owners;
  long pad;
};
Header* header(id object) { return (Header*)object - 1; }

std::mutex& census_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::map<std::string, long>& census() {
  static auto* counts = new std::map<std::string, long>;
  return *counts;
}
void count(Class kind, long change) {
  std::lock_guard<std::mutex> lock(census_mutex());
  census()[class_getName(kind)] += change;
}

bool keep_zombies() {
  static const bool keep = getenv("METALSIM_ZOMBIES") && *getenv("METALSIM_ZOMBIES") == '1';
  return keep;
}
[[noreturn]] void report_zombie(id object, const char* what) {
  fprintf(stderr, "metalsim: %s sent to a freed object (%p)\n", what, (void*)object);
  abort();
}

struct Pool {
  Pool* outer;
  std::vector<id> objects;
};
thread_local Pool* innermost_pool;

}  // namespace

// Whatever is sent to a freed object ends up here, since this class knows next to nothing.
@interface MetalsimZombie : NSObject
@end
@implementation MetalsimZombie
- (instancetype)retain {
  report_zombie(self, "retain");
}
- (oneway void)release {
  report_zombie(self, "release");
}
- (instancetype)autorelease {
  report_zombie(self, "autorelease");
}
// clang-format off: it joins the two parts of the runtime's selector `forward::`
- (id)forward:(SEL)selector :(void*)arguments {
  report_zombie(self, sel_getName(selector));
}
// clang-format on
@end

@implementation NSObject
+ (instancetype)alloc {
  auto* place = (char*)calloc(1, sizeof(Header) + class_getInstanceSize(self));
  if (!place) abort();
  id object = (id)(place + sizeof(Header));
  object_setClass(object, self);
  count(self, 1);
  return object;
}
+ (instancetype)new {
  return [[self alloc] init];
}
+ (Class)class {
  return self;
}
- (instancetype)init {
  return self;
}
- (void)dealloc {
  count(object_getClass(self), -1);
  if (keep_zombies())
    object_setClass(self, [MetalsimZombie class]);
  else
    free(header(self));
}
- (instancetype)retain {
  header(self)->extra_owners.fetch_add(1, std::memory_order_relaxed);
  return self;
}
- (oneway void)release {
  if (header(self)->extra_owners.fetch_sub(1, std::memory_order_acq_rel) == 0) [self dealloc];
}
- (instancetype)autorelease {
  if (!innermost_pool) {
    fprintf(stderr, "metalsim: autorelease with no pool in place: an object of %s leaks\n",
            class_getName(object_getClass(self)));
    return self;
  }
  innermost_pool->objects.push_back(self);
  return self;
}
- (NSUInteger)retainCount {
  return (NSUInteger)header(self)->extra_owners.load() + 1;
}
- (NSString*)description {
  return [NSString stringWithUTF8String:class_getName(object_getClass(self))];
}
- (Class)class {
  return object_getClass(self);
}
- (BOOL)isKindOfClass:(Class)kind {
  for (Class each = object_getClass(self); each; each = class_getSuperclass(each))
    if (each == kind) return YES;
  return NO;
}
- (BOOL)respondsToSelector:(SEL)selector {
  return class_getInstanceMethod(object_getClass(self), selector) != nullptr;
}
- (BOOL)isEqual:(id)other {
  return self == other;
}
- (NSUInteger)hash {
  return (NSUInteger)self;
}
@end

@implementation NSAutoreleasePool
- (instancetype)init {
  innermost_pool = new Pool{innermost_pool, {}};
  _state = innermost_pool;
  return self;
}
- (void)drain {
  [self release];
}
- (void)dealloc {
  auto* pool = (Pool*)_state;
  // Releasing may autorelease more.
  while (!pool->objects.empty()) {
    id last = pool->objects.back();
    pool->objects.pop_back();
    [last release];
  }
  innermost_pool = pool->outer;
  delete pool;
  [super dealloc];
}
@end

// What clang's @autoreleasepool calls where the runtime is GNU's: see the compiler's flags in ../../framework.py.
extern "C" {
void* objc_autoreleasePoolPush(void) { return (void*)[[NSAutoreleasePool alloc] init]; }
void objc_autoreleasePoolPop(void* pool) { [(id)pool release]; }

long metalsim_live_objects(const char* kind) {
  std::lock_guard<std::mutex> lock(census_mutex());
  if (kind) {
    auto found = census().find(kind);
    return found == census().end() ? 0 : found->second;
  }
  long total = 0;
  for (const auto& [name, live] : census()) total += live;
  return total;
}
}
