// What Linux needs of libdispatch: serial queues. On macOS the system's own header is found instead.
#pragma once
#include <stddef.h>

#ifdef __OBJC__
// As on macOS, so that C++ names that mention a queue are mangled alike.
@protocol OS_dispatch_queue
@end
@class NSObject;
typedef NSObject<OS_dispatch_queue>* dispatch_queue_t;
#else
typedef struct dispatch_queue_s* dispatch_queue_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif
typedef long dispatch_once_t;
dispatch_queue_t dispatch_queue_create(const char* label, void* attributes);
#ifdef __BLOCKS__
typedef void (^dispatch_block_t)(void);
void dispatch_sync(dispatch_queue_t queue, __attribute__((noescape)) dispatch_block_t block);
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_once(dispatch_once_t* done, __attribute__((noescape)) dispatch_block_t block);
#endif
#ifdef __cplusplus
}
#endif
