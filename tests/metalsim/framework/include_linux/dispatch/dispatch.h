// What Linux needs of libdispatch: queues and semaphores. On macOS the system's own header is found instead.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __OBJC__
// As on macOS, so that C++ names that mention a queue are mangled alike.
@protocol OS_dispatch_queue
@end
@protocol OS_dispatch_semaphore
@end
@class NSObject;
typedef NSObject<OS_dispatch_queue>* dispatch_queue_t;
typedef NSObject<OS_dispatch_semaphore>* dispatch_semaphore_t;
#else
typedef struct dispatch_queue_s* dispatch_queue_t;
typedef struct dispatch_semaphore_s* dispatch_semaphore_t;
#endif

#define DISPATCH_QUEUE_SERIAL ((void*)0)
#define DISPATCH_TIME_NOW (0ull)
#define DISPATCH_TIME_FOREVER (~0ull)
#define NSEC_PER_SEC 1000000000ull
#define NSEC_PER_MSEC 1000000ull

#ifdef __cplusplus
extern "C" {
#endif
typedef long dispatch_once_t;
typedef uint64_t dispatch_time_t;
dispatch_time_t dispatch_time(dispatch_time_t when, int64_t nanoseconds);
dispatch_queue_t dispatch_queue_create(const char* label, void* attributes);
dispatch_semaphore_t dispatch_semaphore_create(intptr_t value);
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);  // 0, or that it timed out
#ifdef __OBJC__
void dispatch_retain(NSObject* object);
void dispatch_release(NSObject* object);
#endif
#ifdef __BLOCKS__
typedef void (^dispatch_block_t)(void);
void dispatch_sync(dispatch_queue_t queue, __attribute__((noescape)) dispatch_block_t block);
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_once(dispatch_once_t* done, __attribute__((noescape)) dispatch_block_t block);
#endif
#ifdef __cplusplus
}
#endif
