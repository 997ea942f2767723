#pragma once
#import <Metal/MTLTypes.h>

@protocol MTLEvent <NSObject>
@property(readonly) id<MTLDevice> device;
@property(copy) NSString* label;
@end

@class MTLSharedEventListener;
typedef void (^MTLSharedEventNotificationBlock)(id<MTLSharedEvent>, uint64_t value);

@protocol MTLSharedEvent <MTLEvent>
@property uint64_t signaledValue;
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds;
@end
