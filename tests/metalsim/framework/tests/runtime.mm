// The runtime under Metal: counting references, blocks, queues, exceptions, Foundation's values.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "harness.h"

CASE(counting) {
  long before = metalsim_live_objects("MetalsimString");
  NSString* text = [[NSString alloc] initWithUTF8String:"abc"];
  CHECK([text retainCount] == 1 && metalsim_live_objects("MetalsimString") == before + 1);
  [text retain];
  CHECK([text retainCount] == 2);
  @autoreleasepool {
    [text autorelease];
    @autoreleasepool {
      [NSString stringWithFormat:@"%d", 1];
    }
    CHECK([text retainCount] == 2 && metalsim_live_objects("MetalsimString") == before + 1);
  }
  CHECK([text retainCount] == 1);
  [text release];
  CHECK(metalsim_live_objects("MetalsimString") == before);
}

CASE(message_to_a_freed_object) {
  NSString* text = [[NSString alloc] initWithUTF8String:"abc"];
  [text release];
  puts("freed");
  [text length];
}
CASE(releasing_once_too_often) {
  NSString* text = [[NSString alloc] initWithUTF8String:"abc"];
  [text release];
  puts("freed");
  [text release];
}
CASE(autorelease_without_a_pool) {
  std::thread([] { [[[NSString alloc] initWithUTF8String:"abc"] autorelease]; }).join();
}

struct Counted {
  static inline int alive = 0;
  int value;
  explicit Counted(int v) : value(v) { alive++; }
  Counted(const Counted& other) : value(other.value) { alive++; }
  ~Counted() { alive--; }
};
extern "C" void* _Block_copy(const void*);
extern "C" void _Block_release(const void*);
static dispatch_block_t copied(dispatch_block_t block) { return (dispatch_block_t)_Block_copy((const void*)block); }
static void free_block(dispatch_block_t block) { _Block_release((const void*)block); }

CASE(blocks_capture_values_and_objects) {
  NSString* text = [[NSString alloc] initWithUTF8String:"kept"];
  int seen = 0, *at = &seen;
  dispatch_block_t kept;
  {
    Counted counted(7);
    kept = copied(^{
      *at += counted.value + (int)[text length];
    });
    CHECK(Counted::alive == 3 && [text retainCount] == 2);  // the block on the stack has one too
  }
  CHECK(Counted::alive == 1);
  dispatch_block_t again = copied(kept);
  CHECK(again == kept && [text retainCount] == 2);
  kept();
  again();
  CHECK(seen == 22);
  free_block(kept);
  CHECK(Counted::alive == 1);
  free_block(again);
  CHECK(Counted::alive == 0 && [text retainCount] == 1);
  [text release];
}
CASE(block_variables_are_shared) {
  dispatch_block_t first, second;
  {
    __block Counted counted(1);
    first = copied(^{
      counted.value++;
    });
    second = copied(^{
      counted.value *= 10;
    });
    first();
    second();
    CHECK(counted.value == 20);
  }
  CHECK(Counted::alive == 1);
  second();
  free_block(first);
  second();
  CHECK(Counted::alive == 1);
  free_block(second);
  CHECK(Counted::alive == 0);
}
CASE(blocks_in_blocks) {
  __block int total = 0;
  dispatch_block_t outer;
  {
    int step = 3;
    dispatch_block_t inner = ^{
      total += step;
    };
    outer = copied(^{
      inner();
      inner();
    });
  }
  outer();
  CHECK(total == 6);
  free_block(outer);
}

CASE(a_queue_serves_in_order) {
  dispatch_queue_t queue = dispatch_queue_create("order", nullptr);
  __block std::vector<int> order;
  for (int i = 0; i < 20; i++) {
    dispatch_async(queue, ^{
      order.push_back(i);
    });
    if (i % 5 == 0)
      dispatch_sync(queue, ^{
        order.push_back(100 + i);
      });
  }
  dispatch_sync(queue, ^{
                });
  CHECK(order.size() == 24);
  for (int i = 0, at = 0; i < 20; i++) {
    CHECK(order[at++] == i);
    if (i % 5 == 0) CHECK(order[at++] == 100 + i);
  }
}
CASE(a_queue_runs_one_block_at_a_time) {
  dispatch_queue_t queue = dispatch_queue_create("one", nullptr);
  static std::atomic<int> inside, total;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([=] {
      for (int i = 0; i < 50; i++)
        dispatch_sync(queue, ^{
          CHECK(++inside == 1);
          total++;
          inside--;
        });
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(total == 200);
}
CASE(entering_a_queue_from_itself) {
  dispatch_queue_t queue = dispatch_queue_create("mine", nullptr);
  dispatch_sync(queue, ^{
    dispatch_sync(queue, ^{
                  });
  });
}
CASE(a_queue_within_another) {
  dispatch_queue_t one = dispatch_queue_create("one", nullptr), two = dispatch_queue_create("two", nullptr);
  __block int done = 0;
  dispatch_sync(one, ^{
    dispatch_sync(two, ^{
      done = 1;
    });
  });
  CHECK(done);
}
CASE(an_exception_leaves_a_block) {
  std::set_terminate([] {
    puts("terminated");
    abort();
  });
  dispatch_sync(dispatch_queue_create("throwing", nullptr), ^{
    throw std::runtime_error("out");
  });
}
CASE(once) {
  static dispatch_once_t token;
  __block int calls = 0;
  for (int i = 0; i < 3; i++)
    dispatch_once(&token, ^{
      calls++;
    });
  CHECK(calls == 1);
}

CASE(exceptions_are_caught_in_objective_cpp) {
  int caught = 0;
  try {
    ^{
      throw std::runtime_error("inside");
    }();
  } catch (const std::invalid_argument&) {
    CHECK(false);
  } catch (const std::runtime_error& error) {
    CHECK(!strcmp(error.what(), "inside"));
    caught++;
  }
  try {
    throw 5;
  } catch (...) {
    caught++;
  }
  auto unwound = std::make_shared<int>(1);
  try {
    auto copy = unwound;
    throw 1;
  } catch (int) {
    CHECK(unwound.use_count() == 1);
    caught++;
  }
  CHECK(caught == 3);
}

CASE(values) {
  NSString* text = [NSString stringWithFormat:@"%d %5.2f %@ %s %lu %%", -3, 2.5, @"obj", "c", 7ul];
  CHECK([text isEqualToString:@"-3  2.50 obj c 7 %"]);
  CHECK([[[NSString alloc] initWithBytes:"abcdef" length:3 encoding:NSUTF8StringEncoding] isEqual:@"abc"]);
  CHECK([@"abc" hash] == [[NSString stringWithUTF8String:"abc"] hash] && ![@"abc" isEqual:@"abd"]);
  CHECK([@"abc" length] == 3 && [[NSString string] length] == 0);
  NSNumber* number = [NSNumber numberWithInt:-4];
  CHECK(number.intValue == -4 && number.boolValue && [number.stringValue isEqualToString:@"-4"]);
  CHECK([NSNumber numberWithDouble:0.5].doubleValue == 0.5 && ![NSNumber numberWithBool:NO].boolValue);
  id objects[] = {@"a", number};
  NSArray* array = [NSArray arrayWithObjects:objects count:2];
  CHECK(array.count == 2 && [array objectAtIndex:1] == number && [[array objectAtIndex:0] isEqual:@"a"]);
  id keys[] = {@"x", @"y"};
  NSDictionary* map = [NSDictionary dictionaryWithObjects:objects forKeys:keys count:2];
  CHECK(map.count == 2 && [map objectForKey:[NSString stringWithUTF8String:"y"]] == number && ![map objectForKey:@"z"]);
  CHECK(map.allKeys.count == 2);
  NSError* plain = [NSError errorWithDomain:@"d" code:4 userInfo:nil];
  CHECK(plain.code == 4 && [plain.localizedDescription isEqualToString:@"d error 4"]);
  CHECK([text isKindOfClass:[NSString class]] && ![text isKindOfClass:[NSNumber class]]);
  CHECK([text respondsToSelector:@selector(UTF8String)] && ![text respondsToSelector:@selector(intValue)]);
}
CASE(literals_and_loops) {
  NSArray* array = @[ @"x", @1, @2.5, @YES, @(4u), @(5l), @0.5f ];
  CHECK(array.count == 7 && [[array objectAtIndex:1] intValue] == 1 && [[array objectAtIndex:3] boolValue]);
  CHECK([[array objectAtIndex:4] intValue] == 4 && [[array objectAtIndex:6] doubleValue] == 0.5);
  NSDictionary<NSString*, NSNumber*>* map = @{@"one" : @1, @"two" : @2};
  int sum = 0, objects = 0;
  for (NSString* key in map) sum += [map objectForKey:key].intValue;
  NSDictionary* none = nil;
  for (id key in none) sum += key ? 100 : 100;
  id many[50];
  for (int i = 0; i < 50; i++) many[i] = @(i);  // more than the loop fetches at once
  for (NSNumber* each in [NSArray arrayWithObjects:many count:50]) CHECK(each.intValue == objects++);
  CHECK(sum == 3 && objects == 50);
}
CASE(bytes_and_addresses) {
  char bytes[] = "a\0b";
  NSData* data = [NSData dataWithBytes:bytes length:3];
  bytes[0] = 'c';
  CHECK(data.length == 3 && !memcmp([data bytes], "a\0b", 3));
  CHECK([[NSURL fileURLWithPath:@"/tmp/x"].path isEqual:@"/tmp/x"]);
}
CASE(semaphores) {
  dispatch_semaphore_t semaphore = dispatch_semaphore_create(1);
  CHECK(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_FOREVER) == 0);
  CHECK(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_NOW) != 0);
  CHECK(dispatch_semaphore_wait(semaphore, dispatch_time(DISPATCH_TIME_NOW, NSEC_PER_MSEC)) != 0);
  std::thread other([=] {
    for (int i = 0; i < 2; i++) dispatch_semaphore_signal(semaphore);
  });
  for (int i = 0; i < 2; i++) CHECK(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_FOREVER) == 0);
  other.join();
  CHECK(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_NOW) != 0);
  dispatch_retain(semaphore);
  dispatch_release(semaphore);
  dispatch_release(semaphore);
  CHECK(metalsim_live_objects("MetalsimSemaphore") == 0);
}
CASE(index_beyond_an_array) {
  id objects[] = {@"a"};
  [[NSArray arrayWithObjects:objects count:1] objectAtIndex:1];
}

int main(int, char** arguments) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  auto found = cases().find(arguments[1]);
  if (found == cases().end()) return 3;
  @autoreleasepool {
    found->second();
  }
  puts("passed");
}
