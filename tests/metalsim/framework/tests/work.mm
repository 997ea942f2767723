// Kernels run: results, order, asynchrony, errors, memory.
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "harness.h"

static id<MTLComputePipelineState> new_work_pipeline(float factor, bool negate) {
  id<MTLLibrary> library = new_shader_library();
  MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
  [values setConstantValue:&factor type:MTLDataTypeFloat atIndex:3];
  [values setConstantValue:&negate type:MTLDataTypeBool withName:@"kNegate"];
  NSError* error = nil;
  id<MTLFunction> function = [library newFunctionWithName:@"work" constantValues:values error:&error];
  CHECK(function && !error);
  CHECK([function.name isEqualToString:@"work"] && function.functionType == MTLFunctionTypeKernel);
  id<MTLComputePipelineState> pipeline = [device() newComputePipelineStateWithFunction:function error:&error];
  CHECK(pipeline && pipeline.maxTotalThreadsPerThreadgroup == 1024 && pipeline.threadExecutionWidth == 32);
  [values release];
  [(id)function release];
  [(id)library release];
  return pipeline;
}

static void run_work(id<MTLCommandQueue> queue, float factor, bool negate) {
  constexpr int kCount = 45, kOffset = 7;
  id<MTLComputePipelineState> pipeline = new_work_pipeline(factor, negate);
  float x[kOffset + kCount];
  for (int i = 0; i < kOffset + kCount; i++) x[i] = (float)(i * i % 13);
  id<MTLBuffer> from = [device() newBufferWithBytes:x length:sizeof x options:MTLResourceStorageModeShared];
  id<MTLBuffer> to = [device() newBufferWithLength:sizeof x options:MTLResourceStorageModeShared];
  CHECK(from.length == sizeof x && !memcmp([from contents], x, sizeof x) && to.gpuAddress != from.gpuAddress);
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  uint32_t n = kCount;
  [encoder setComputePipelineState:pipeline];
  [encoder setBuffer:from offset:0 atIndex:0];
  [encoder setBufferOffset:kOffset * sizeof(float) atIndex:0];
  id<MTLBuffer> buffers[] = {to};
  NSUInteger offsets[] = {kOffset * sizeof(float)};
  [encoder setBuffers:buffers offsets:offsets withRange:NSMakeRange(1, 1)];
  [encoder setBytes:&n length:sizeof n atIndex:2];
  [encoder setThreadgroupMemoryLength:32 * sizeof(float) atIndex:0];
  [encoder dispatchThreadgroups:MTLSizeMake(2, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  CHECK(commands.status == MTLCommandBufferStatusCompleted && !commands.error);
  CHECK(commands.GPUEndTime >= commands.GPUStartTime && commands.GPUStartTime > 0);
  auto* y = (const float*)[to contents];
  for (int i = 0; i < kOffset; i++) CHECK(y[i] == 0);
  for (int i = 0; i < kCount; i++) {
    float sum = 0;
    for (int k = i / 32 * 32; k < kCount && k < i / 32 * 32 + 32; k++) sum += x[kOffset + k];
    CHECK(y[kOffset + i] == (negate ? -factor : factor) * x[kOffset + i] + sum);
  }
  [(id)from release];
  [(id)to release];
  [(id)pipeline release];
}
CASE(a_kernel_with_all_kinds_of_arguments) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  run_work(queue, 3, false);
  run_work(queue, 0.5f, true);
  [(id)queue release];
}

CASE(nothing_leaks) {
  auto all = [] {
    @autoreleasepool {
      id<MTLCommandQueue> queue = [device() newCommandQueue];
      run_work(queue, 2, false);
      id<MTLCommandBuffer> never_committed = [queue commandBuffer];
      id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
      id<MTLComputePipelineState> pipeline = new_pipeline_of(@"add_one");
      encode(never_committed, pipeline, buffer, 8);
      [never_committed addCompletedHandler:^(id<MTLCommandBuffer>) {
        CHECK([buffer length] == 0);
      }];
      NSError* error = nil;
      CHECK(![device() newLibraryWithSource:@"kernel void f() { oops }" options:nil error:&error] && error);
      [(id)buffer release];
      [(id)pipeline release];
      [(id)queue release];
    }
  };
  all();  // what is made once is made now
  long before = metalsim_live_objects(NULL);
  for (int i = 0; i < 3; i++) all();
  CHECK(metalsim_live_objects(NULL) == before);
  CHECK(metalsim_live_objects("MetalsimBuffer") == 0);
}

CASE(late_work_waits_until_somebody_waits) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLComputePipelineState> add_one = new_pipeline_of(@"add_one"), twice = new_pipeline_of(@"twice");
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  auto* x = (const int*)[buffer contents];
  id<MTLCommandBuffer> first = [queue commandBuffer], second = [queue commandBuffer], third = [queue commandBuffer];
  __block std::string order;
  for (id<MTLCommandBuffer> each : {first, second, third})
    [each addCompletedHandler:^(id<MTLCommandBuffer> done) {
      order += done == first ? "1" : done == second ? "2" : "3";
      CHECK(done.status == MTLCommandBufferStatusCompleted);
    }];
  [first addScheduledHandler:^(id<MTLCommandBuffer>) {
    order += "s";
  }];
  encode(first, add_one, buffer, 8);
  encode(second, twice, buffer, 8);
  encode(third, add_one, buffer, 8);
  for (id<MTLCommandBuffer> each : {first, second, third}) [each commit];
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(x[0] == 0 && order.empty());
  [second waitUntilCompleted];
  CHECK(x[0] == 2 && x[7] == 2 && order == "s12");
  CHECK(third.status == MTLCommandBufferStatusCompleted);  // who polls is waiting
  CHECK(x[7] == 3 && order == "s123");
  [second waitUntilCompleted];
  CHECK(order == "s123");
}

CASE(eager_work_is_done_without_a_wait) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLComputePipelineState> add_one = new_pipeline_of(@"add_one");
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  static std::atomic<bool> done;
  [commands addCompletedHandler:^(id<MTLCommandBuffer>) {
    done = true;
  }];
  encode(commands, add_one, buffer, 8);
  [commands commit];
  while (!done) std::this_thread::yield();
  CHECK(*(const int*)[buffer contents] == 1);
  [commands waitUntilCompleted];
}

CASE(concurrent_dispatches_need_barriers) {
  id<MTLComputePipelineState> add_one = new_pipeline_of(@"add_one"), twice = new_pipeline_of(@"twice");
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  auto run = [&](MTLDispatchType type, bool barrier) {
    id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoderWithDispatchType:type];
    [encoder setBuffer:buffer offset:0 atIndex:0];
    *(int*)[buffer contents] = 0;
    for (id<MTLComputePipelineState> each : {add_one, twice}) {
      [encoder setComputePipelineState:each];
      [encoder dispatchThreads:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
      if (barrier) [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    }
    [encoder endEncoding];
    [commands commit];
    [commands waitUntilCompleted];
    return *(const int*)[buffer contents];
  };
  metalsim_settings settings;
  metalsim_get_settings(&settings);
  settings.order = 1;
  metalsim_set_settings(&settings);
  CHECK(run(MTLDispatchTypeSerial, false) == 2 && run(MTLDispatchTypeConcurrent, true) == 2);
  CHECK(run(MTLDispatchTypeConcurrent, false) == 1);
  settings.order = 2;
  int reversed = 0;
  for (settings.seed = 0; settings.seed < 32; settings.seed++) {
    metalsim_set_settings(&settings);
    reversed += run(MTLDispatchTypeConcurrent, false) == 1;
    CHECK(run(MTLDispatchTypeConcurrent, true) == 2);
  }
  CHECK(reversed > 0 && reversed < 32);
}

// More would be misuse, which is told on stderr.
CASE(a_queue_has_as_many_open_command_buffers_as_it_says) {
  id<MTLCommandQueue> narrow = [device() newCommandQueueWithMaxCommandBufferCount:3];
  for (int i = 0; i < 5; i++) [[narrow commandBuffer] commit];
  for (int i = 0; i < 2; i++) @autoreleasepool {
      for (int k = 0; k < 3; k++) [narrow commandBuffer];
    }
}

CASE(enqueue_fixes_the_order) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLComputePipelineState> add_one = new_pipeline_of(@"add_one"), twice = new_pipeline_of(@"twice");
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> first = [queue commandBuffer], second = [queue commandBuffer];
  [first enqueue];
  CHECK(first.status == MTLCommandBufferStatusEnqueued);
  encode(second, twice, buffer, 8);
  [second commit];
  // The one that is ahead holds up the other until it is committed.
  std::thread waiter([=] {
    @autoreleasepool {
      [second waitUntilCompleted];
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  encode(first, add_one, buffer, 8);
  [first commit];
  waiter.join();
  CHECK(*(const int*)[buffer contents] == 2);  // (0 + 1) * 2
}

CASE(resources_live_as_long_as_the_work) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLComputePipelineState> add_one = new_pipeline_of(@"add_one");
  @autoreleasepool {
    for (BOOL retained : {YES, NO}) {
      id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
      id<MTLCommandBuffer> commands = retained ? [queue commandBuffer] : [queue commandBufferWithUnretainedReferences];
      CHECK(commands.retainedReferences == retained);
      @autoreleasepool {
        encode(commands, add_one, buffer, 8);
      }
      CHECK([(id)buffer retainCount] == (retained ? 2u : 1u));
      if (!retained) [(id)buffer retain];
      [(id)buffer release];
      [commands commit];
      CHECK(metalsim_live_objects("MetalsimBuffer") == 1);
      [commands waitUntilCompleted];
      if (!retained) [(id)buffer release];
      CHECK(metalsim_live_objects("MetalsimBuffer") == 0);
    }
  }
}

CASE(a_compile_error_names_its_line) {
  NSError* error = nil;
  NSString* source = @"#include <metal_stdlib>\nkernel void f(device int* x) {\n  x[0] = no_such_thing;\n}\n";
  CHECK(![device() newLibraryWithSource:source options:nil error:&error]);
  CHECK(error.code == MTLLibraryErrorCompileFailure && [error.domain isEqualToString:MTLLibraryErrorDomain]);
  CHECK_CONTAINS(error.localizedDescription, "<source>:3:");
  CHECK_CONTAINS(error.localizedDescription, "no_such_thing");
  CHECK(![device() newLibraryWithSource:source options:nil error:nil]);
}

CASE(macros_reach_the_shader) {
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  CHECK(options.fastMathEnabled);
  options.mathMode = MTLMathModeSafe;
  CHECK(!options.fastMathEnabled);
  id keys[] = {@"STEP", @"NAME"}, values[] = {[NSNumber numberWithInt:5], @"stepped"};
  options.preprocessorMacros = [NSDictionary dictionaryWithObjects:values forKeys:keys count:2];
  NSString* source = @"kernel void NAME(device int* x, uint i [[thread_position_in_grid]]) { x[i] = STEP; }";
  id<MTLLibrary> library = [device() newLibraryWithSource:source options:options error:nil];
  CHECK(library.functionNames.count == 1 && [[library.functionNames objectAtIndex:0] isEqualToString:@"stepped"]);
  id<MTLComputePipelineState> pipeline =
      [device() newComputePipelineStateWithFunction:[library newFunctionWithName:@"stepped"] error:nil];
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  encode(commands, pipeline, buffer, 8);
  [commands commit];
  [commands waitUntilCompleted];
  CHECK(((const int*)[buffer contents])[7] == 5);
}

CASE(functions_that_are_not_there) {
  id<MTLLibrary> library = new_shader_library();
  CHECK(library.functionNames.count == 5);
  CHECK(![library newFunctionWithName:@"absent"]);
  MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
  NSError* error = nil;
  CHECK(![library newFunctionWithName:@"absent" constantValues:values error:&error]);
  CHECK(error.code == MTLLibraryErrorFunctionNotFound);
  CHECK_CONTAINS(error.localizedDescription, "'absent'");
  int wrong = 1;
  [values setConstantValue:&wrong type:MTLDataTypeInt atIndex:3];
  CHECK(![library newFunctionWithName:@"work" constantValues:values error:&error]);
  CHECK_CONTAINS(error.localizedDescription, "'kFactor' is of the type float, the value given for it of the type int");
  [values reset];
  bool both[] = {true};
  [values setConstantValues:both type:MTLDataTypeBool withRange:NSMakeRange(4, 1)];
  CHECK([library newFunctionWithName:@"work" constantValues:values error:&error]);
}

CASE(types_of_constants) {
  NSString* source =
      @"#include <metal_stdlib>\nusing Mine = short;\n"
       "constant metal::uint3 a [[function_constant(0)]];\nconstant unsigned b [[function_constant(1)]];\n"
       "constant Mine c [[function_constant(2)]];\n"
       "kernel void sum(device uint* x) { x[0] = a.x + a.z * b + c; }";
  id<MTLLibrary> library = [device() newLibraryWithSource:source options:nil error:nil];
  uint32_t values[4] = {1, 2, 3, 4}, factor = 10;
  int16_t more = 5;
  auto function = [&](MTLDataType a, MTLDataType b, MTLDataType c) {
    MTLFunctionConstantValues* all = [[[MTLFunctionConstantValues alloc] init] autorelease];
    [all setConstantValue:values type:a withName:@"a"];
    [all setConstantValue:&factor type:b atIndex:1];
    [all setConstantValue:&more type:c withName:@"c"];
    return [library newFunctionWithName:@"sum" constantValues:all error:nil];
  };
  CHECK(!function(MTLDataTypeUInt4, MTLDataTypeUInt, MTLDataTypeShort));
  CHECK(!function(MTLDataTypeUInt3, MTLDataTypeInt, MTLDataTypeShort));
  CHECK(!function(MTLDataTypeUInt3, MTLDataTypeUInt, MTLDataTypeInt));  // the shader's own name for short
  id<MTLComputePipelineState> pipeline =
      [device() newComputePipelineStateWithFunction:function(MTLDataTypeUInt3, MTLDataTypeUInt, MTLDataTypeShort)
                                              error:nil];
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  encode(commands, pipeline, buffer, 1);
  [commands commit];
  [commands waitUntilCompleted];
  CHECK(*(const uint32_t*)[buffer contents] == 36);
}

CASE(pipelines_by_descriptor) {
  MTLComputePipelineDescriptor* descriptor = [[MTLComputePipelineDescriptor alloc] init];
  id<MTLFunction> function = [new_shader_library() newFunctionWithName:@"twice"];
  descriptor.computeFunction = function;
  CHECK([(id)function retainCount] == 2);
  function.label = @"of the function";
  id<MTLComputePipelineState> pipelines[2];
  for (id<MTLComputePipelineState>& each : pipelines) {
    each = [device() newComputePipelineStateWithDescriptor:descriptor options:0 reflection:nil error:nil];
    descriptor.label = @"of its own";
    descriptor.maxTotalThreadsPerThreadgroup = 4;
  }
  CHECK([pipelines[0].label isEqual:@"of the function"] && pipelines[0].maxTotalThreadsPerThreadgroup == 64);
  CHECK([pipelines[1].label isEqual:@"of its own"] && pipelines[1].maxTotalThreadsPerThreadgroup == 4);
  [descriptor release];
  CHECK([(id)function retainCount] == 3);
}

CASE(compiled_libraries_are_refused) {
  NSError* error = nil;
  CHECK(![device() newLibraryWithURL:[NSURL fileURLWithPath:@"/x.metallib"] error:&error]);
  CHECK(error.code == MTLLibraryErrorUnsupported);
  CHECK_CONTAINS(error.localizedDescription, "metalsim runs no compiled libraries: /x.metallib");
}

CASE(a_fault_fails_its_command_buffer_only) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLComputePipelineState> beyond = new_pipeline_of(@"beyond"), add_one = new_pipeline_of(@"add_one");
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  encode(commands, beyond, buffer, 8);
  encode(commands, add_one, buffer, 8);
  [commands commit];
  [commands waitUntilCompleted];
  CHECK(commands.status == MTLCommandBufferStatusError);
  CHECK([commands.error.domain isEqualToString:MTLCommandBufferErrorDomain]);
  NSString* text = commands.error.localizedDescription;
  for (const char* part : {"out of bounds", "kernel beyond", "thread (7, 0, 0)", "<source>:17"})
    CHECK_CONTAINS(text, part);
  id<MTLCommandBuffer> next = [queue commandBuffer];
  int before = *(const int*)[buffer contents];
  encode(next, add_one, buffer, 8);
  [next commit];
  [next waitUntilCompleted];
  CHECK(next.status == MTLCommandBufferStatusCompleted && *(const int*)[buffer contents] == before + 1);
}

// The access itself is in metal_stdlib.
CASE(a_fault_is_placed_in_the_shader) {
  id<MTLComputePipelineState> beyond = new_pipeline_of(@"beyond_in_a_vector");
  id<MTLBuffer> buffer = [device() newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  encode(commands, beyond, buffer, 8);
  [commands commit];
  [commands waitUntilCompleted];
  CHECK_CONTAINS(commands.error.localizedDescription, "<source>:20");
}

CASE(copies_and_fills) {
  char bytes[64];
  for (int i = 0; i < 64; i++) bytes[i] = (char)i;
  id<MTLBuffer> from = [device() newBufferWithBytes:bytes length:64 options:0];
  id<MTLBuffer> to = [device() newBufferWithLength:64 options:MTLResourceStorageModePrivate];
  id<MTLBuffer> back = [device() newBufferWithLength:64 options:0];
  CHECK(to.storageMode == MTLStorageModePrivate && ![to contents]);
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:to range:NSMakeRange(0, 64) value:9];
  [encoder copyFromBuffer:from sourceOffset:5 toBuffer:to destinationOffset:10 size:20];
  [encoder copyFromBuffer:to sourceOffset:0 toBuffer:back destinationOffset:0 size:64];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  auto* result = (const char*)[back contents];
  for (int i = 0; i < 64; i++) CHECK(result[i] == (i >= 10 && i < 30 ? i - 5 : 9));
}

CASE(borrowed_memory_goes_back_once) {
  void* memory = nullptr;
  CHECK(!posix_memalign(&memory, 16384, 16384));
  __block int calls = 0;
  id<MTLBuffer> buffer = [device() newBufferWithBytesNoCopy:memory
                                                     length:16384
                                                    options:0
                                                deallocator:^(void* bytes, NSUInteger length) {
                                                  CHECK(bytes == memory && length == 16384);
                                                  calls++;
                                                }];
  CHECK([buffer contents] == memory);
  [(id)buffer release];
  CHECK(calls == 1);
  free(memory);
}

CASE(settings_and_records) {
  id<MTLComputePipelineState> beyond = new_pipeline_of(@"beyond"), add_one = new_pipeline_of(@"add_one");
  id<MTLBuffer> buffer = [device() newBufferWithLength:64 options:0];
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  metalsim_settings settings;
  metalsim_get_settings(&settings);
  CHECK(settings.check == 1 && settings.order == 1 && settings.seed == 5 && settings.threads == 3);
  settings.check = 0;
  metalsim_set_settings(&settings);
  size_t start = metalsim_start_recording();
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  encode(commands, add_one, buffer, 12);
  encode(commands, beyond, buffer, 15);
  [commands commit];
  [commands waitUntilCompleted];
  CHECK(commands.status == MTLCommandBufferStatusCompleted && metalsim_recorded() == start + 2);
  metalsim_dispatch_record record;
  metalsim_record_at(start, &record);
  CHECK(!strcmp(record.kernel, "add_one") && record.grid[0] == 12 && record.threadgroup[0] == 8);
  metalsim_stop_recording();
  CHECK(metalsim_recorded() == 0);
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
