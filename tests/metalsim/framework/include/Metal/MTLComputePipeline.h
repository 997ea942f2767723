#pragma once
#import <Metal/MTLTypes.h>

typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) {
  MTLPipelineOptionNone = 0,
  MTLPipelineOptionArgumentInfo = 1 << 0,
  MTLPipelineOptionBufferTypeInfo = 1 << 1,
};

@interface MTLComputePipelineDescriptor : NSObject
#ifndef __APPLE__
{
  NSString* _label;
  id<MTLFunction> _function;
  NSUInteger _max_threads;
  BOOL _whole_simdgroups;
}
#endif
@property(copy) NSString* label;
@property(retain) id<MTLFunction> computeFunction;
@property NSUInteger maxTotalThreadsPerThreadgroup;
@property BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
- (void)reset;
@end

@class MTLComputePipelineReflection;
typedef MTLComputePipelineReflection* MTLAutoreleasedComputePipelineReflection;

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger staticThreadgroupMemoryLength;
@end
