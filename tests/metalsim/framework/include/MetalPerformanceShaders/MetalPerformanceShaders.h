// torch's headers name this class; its objects are command buffers.
#pragma once
#import <Metal/Metal.h>

@interface MPSCommandBuffer : NSObject <MTLCommandBuffer>
@end
