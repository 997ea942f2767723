// What Metal's validation refuses. Each case does one thing wrong and prints what the command buffer's error says.
#include "harness.h"

static id<MTLBuffer> buffer;
static id<MTLComputePipelineState> pipeline;
static id<MTLCommandQueue> queue;
static id<MTLCommandBuffer> commands;
static id<MTLComputeCommandEncoder> encoder;

static void bind_and_dispatch(MTLSize grid, MTLSize threads) {
  [encoder setComputePipelineState:pipeline];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreads:grid threadsPerThreadgroup:threads];
}
static MTLSize size(NSUInteger x, NSUInteger y = 1, NSUInteger z = 1) { return MTLSizeMake(x, y, z); }

// Ends and commits what is still open, and prints what the command buffer says.
static void show() {
  [commands waitUntilCompleted];
  printf("%s\n", commands.error ? commands.error.localizedDescription.UTF8String : "no error");
}
static void commit_and_show() {
  [commands commit];
  show();
}
static void end_and_show() {
  [encoder endEncoding];
  commit_and_show();
}

CASE(nothing_wrong) {
  bind_and_dispatch(size(8), size(8));
  end_and_show();
}
CASE(offset_beyond_the_buffer) {
  [encoder setBuffer:buffer offset:32 atIndex:0];
  end_and_show();
}
CASE(new_offset_beyond_the_buffer) {
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder setBufferOffset:33 atIndex:0];
  end_and_show();
}
CASE(new_offset_without_a_buffer) {
  [encoder setBufferOffset:0 atIndex:4];
  end_and_show();
}
CASE(buffer_index_31) {
  [encoder setBuffer:buffer offset:0 atIndex:31];
  end_and_show();
}
CASE(bytes_index_31) {
  [encoder setBytes:"1234" length:4 atIndex:31];
  end_and_show();
}
CASE(too_many_bytes) {
  static char bytes[4097];
  [encoder setBytes:bytes length:sizeof bytes atIndex:0];
  end_and_show();
}
CASE(no_bytes) {
  [encoder setBytes:"" length:0 atIndex:0];
  end_and_show();
}
CASE(threadgroup_memory_not_of_16) {
  [encoder setThreadgroupMemoryLength:20 atIndex:0];
  end_and_show();
}
CASE(threadgroup_memory_above_the_limit) {
  [encoder setThreadgroupMemoryLength:32784 atIndex:0];
  end_and_show();
}
CASE(threadgroup_memory_above_the_limit_in_all) {
  [encoder setThreadgroupMemoryLength:32768 atIndex:0];
  [encoder setThreadgroupMemoryLength:16 atIndex:1];
  bind_and_dispatch(size(8), size(8));
  end_and_show();
}
CASE(too_many_threads) {
  bind_and_dispatch(size(2048), size(32, 33));
  end_and_show();
}
CASE(more_threads_than_the_kernel_takes) {
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder setComputePipelineState:new_pipeline_of(@"twice")];
  [encoder dispatchThreads:size(65) threadsPerThreadgroup:size(65)];
  end_and_show();
}
CASE(so_many_threads_that_the_product_wraps) {
  bind_and_dispatch(size(8), size(1ul << 32, 1ul << 32));
  end_and_show();
}
CASE(empty_threadgroup) {
  bind_and_dispatch(size(8), size(8, 0));
  end_and_show();
}
CASE(empty_grid) {
  bind_and_dispatch(size(0), size(8));
  end_and_show();
}
CASE(endless_grid) {
  bind_and_dispatch(size(1ul << 33), size(8));
  end_and_show();
}
CASE(so_many_threadgroups_that_the_product_wraps) {
  [encoder setComputePipelineState:pipeline];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreadgroups:size(1ul << 61) threadsPerThreadgroup:size(8)];
  end_and_show();
}
CASE(no_pipeline) {
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreads:size(8) threadsPerThreadgroup:size(8)];
  end_and_show();
}
CASE(nil_pipeline) {
  [encoder setComputePipelineState:nil];
  end_and_show();
}
CASE(no_buffer) {
  [encoder setComputePipelineState:pipeline];
  [encoder dispatchThreads:size(8) threadsPerThreadgroup:size(8)];
  end_and_show();
}
CASE(no_threadgroup_memory) {
  id<MTLComputePipelineState> work = new_pipeline_of(@"work");
  [encoder setComputePipelineState:work];
  for (int i = 0; i < 3; i++) [encoder setBuffer:buffer offset:0 atIndex:i];
  [encoder dispatchThreads:size(8) threadsPerThreadgroup:size(8)];
  end_and_show();
}
static void dispatch_work(MTLSize threads) {
  [encoder setComputePipelineState:new_pipeline_of(@"work")];
  for (int i = 0; i < 2; i++) [encoder setBuffer:buffer offset:0 atIndex:i];
  [encoder setThreadgroupMemoryLength:128 atIndex:0];
  [encoder dispatchThreads:threads threadsPerThreadgroup:threads];
}
CASE(too_few_bytes_for_a_reference) {
  [encoder setBytes:"12" length:2 atIndex:2];
  dispatch_work(size(8));
  end_and_show();
}
CASE(too_small_a_rest_for_a_reference) {
  [encoder setBuffer:[device() newBufferWithLength:6 options:0] offset:4 atIndex:2];
  dispatch_work(size(8));
  end_and_show();
}
CASE(constant_memory_at_an_odd_offset) {
  [encoder setBuffer:buffer offset:6 atIndex:2];
  dispatch_work(size(8));
  end_and_show();
}
static id<MTLComputePipelineState> described(void (^describe)(MTLComputePipelineDescriptor*)) {
  MTLComputePipelineDescriptor* descriptor = [[[MTLComputePipelineDescriptor alloc] init] autorelease];
  descriptor.computeFunction = [new_shader_library() newFunctionWithName:@"add_one"];
  describe(descriptor);
  return [device() newComputePipelineStateWithDescriptor:descriptor options:0 reflection:nil error:nil];
}
CASE(more_threads_than_the_descriptor_says) {
  pipeline = described(^(MTLComputePipelineDescriptor* descriptor) {
    descriptor.maxTotalThreadsPerThreadgroup = 4;
  });
  bind_and_dispatch(size(8), size(5));
  end_and_show();
}
CASE(a_promise_of_whole_simdgroups) {
  pipeline = described(^(MTLComputePipelineDescriptor* descriptor) {
    descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
  });
  bind_and_dispatch(size(8), size(32));
  bind_and_dispatch(size(8), size(8));
  end_and_show();
}
CASE(pipeline_with_more_threads_than_there_are) {
  CHECK(!described(^(MTLComputePipelineDescriptor* descriptor) {
    descriptor.maxTotalThreadsPerThreadgroup = 1025;
  }));
  end_and_show();
}
CASE(pipeline_of_no_function) {
  CHECK(!described(^(MTLComputePipelineDescriptor* descriptor) {
    [descriptor reset];
  }));
  end_and_show();
}
CASE(encoding_after_the_end) {
  [encoder endEncoding];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  commit_and_show();
}
CASE(ending_twice) {
  [encoder endEncoding];
  [encoder endEncoding];
  commit_and_show();
}
CASE(two_encoders_at_once) {
  [commands computeCommandEncoder];
  end_and_show();
}
CASE(committing_with_an_open_encoder) {
  [commands commit];
  show();
}
CASE(releasing_an_open_encoder) {
  id<MTLCommandBuffer> other = [queue commandBuffer];
  @autoreleasepool {
    [other computeCommandEncoder];
  }
  [other commit];
  [other waitUntilCompleted];
  printf("%s\n", other.error.localizedDescription.UTF8String);
  end_and_show();
}
CASE(encoding_after_the_commit) {
  [encoder endEncoding];
  [commands commit];
  [commands blitCommandEncoder];
  show();
}
CASE(committing_twice) {
  [encoder endEncoding];
  [commands commit];
  [commands commit];
  show();
}
CASE(a_handler_after_the_commit) {
  [encoder endEncoding];
  [commands commit];
  [commands addCompletedHandler:^(id<MTLCommandBuffer>) {
    CHECK(false);
  }];
  show();
}
CASE(waiting_before_the_commit) {
  [[queue commandBuffer] waitUntilCompleted];
  end_and_show();
}
CASE(signalling_within_an_encoder) {
  [commands encodeSignalEvent:[device() newSharedEvent] value:1];
  end_and_show();
}
CASE(signalling_no_event) {
  [encoder endEncoding];
  [commands encodeSignalEvent:nil value:1];
  commit_and_show();
}
CASE(waiting_for_no_event) {
  [encoder endEncoding];
  [commands encodeWaitForEvent:nil value:1];
  commit_and_show();
}
CASE(too_many_open_command_buffers) {
  id<MTLCommandQueue> narrow = [device() newCommandQueueWithMaxCommandBufferCount:3];
  for (int i = 0; i < 3; i++) [narrow commandBuffer];
  puts("no error");
  [narrow commandBuffer];
}
CASE(copy_beyond_the_buffer) {
  [encoder endEncoding];
  id<MTLBlitCommandEncoder> blit = [commands blitCommandEncoder];
  [blit copyFromBuffer:buffer sourceOffset:8 toBuffer:buffer destinationOffset:0 size:25];
  [blit endEncoding];
  commit_and_show();
}
CASE(copy_over_itself) {
  [encoder endEncoding];
  id<MTLBlitCommandEncoder> blit = [commands blitCommandEncoder];
  [blit copyFromBuffer:buffer sourceOffset:0 toBuffer:buffer destinationOffset:4 size:8];
  [blit endEncoding];
  commit_and_show();
}
CASE(fill_beyond_the_buffer) {
  [encoder endEncoding];
  id<MTLBlitCommandEncoder> blit = [commands blitCommandEncoder];
  [blit fillBuffer:buffer range:NSMakeRange(~0ul, 8) value:0];
  [blit endEncoding];
  commit_and_show();
}
CASE(empty_buffer) {
  CHECK(![device() newBufferWithLength:0 options:0]);
  end_and_show();
}
CASE(endless_buffer) {
  CHECK(![device() newBufferWithLength:1ul << 60 options:0]);
  end_and_show();
}
CASE(borrowing_unaligned_memory) {
  CHECK(![device() newBufferWithBytesNoCopy:(void*)0x1001 length:16 options:0 deallocator:nil]);
  end_and_show();
}
CASE(constant_of_no_type) {
  [[MTLFunctionConstantValues new] setConstantValue:"" type:MTLDataTypeNone atIndex:0];
  end_and_show();
}
CASE(pipeline_of_nothing) {
  NSError* error = nil;
  CHECK(![device() newComputePipelineStateWithFunction:nil error:&error] && error);
  end_and_show();
}

int main(int, char** arguments) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  auto found = cases().find(arguments[1]);
  if (found == cases().end()) return 3;
  @autoreleasepool {
    buffer = [device() newBufferWithLength:32 options:0];
    pipeline = new_pipeline_of(@"add_one");
    queue = [device() newCommandQueue];
    commands = [queue commandBuffer];
    encoder = [commands computeCommandEncoder];
    found->second();
  }
}
