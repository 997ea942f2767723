// A case is a function with a name; the program runs the one that its argument names.
#pragma once
#import <Metal/Metal.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "metalsim_framework.h"

inline std::map<std::string, void (*)()>& cases() {
  static std::map<std::string, void (*)()> all;
  return all;
}
#define CASE(name)                                                         \
  static void case_##name();                                               \
  static const bool registered_##name = (cases()[#name] = case_##name, 1); \
  static void case_##name()

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE_NAME__, __LINE__, #condition); \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)
inline void check_contains(NSString* text, const char* part, int line) {
  if (text && strstr(text.UTF8String, part)) return;
  fprintf(stderr, "line %d: '%s' is not in '%s'\n", line, part, text ? text.UTF8String : "(nil)");
  exit(1);
}
#define CHECK_CONTAINS(text, part) check_contains(text, part, __LINE__)

// y[i] = kFactor * x[i] + sum of the threadgroup's x, 32 threads in each.
constexpr const char* kShader = R"(#include <metal_stdlib>
using namespace metal;
constant float kFactor [[function_constant(3)]];
constant bool kNegate [[function_constant(4)]];
kernel void work(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant uint& n [[buffer(2)]],
                 threadgroup float* shared [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                 uint t [[thread_index_in_threadgroup]]) {
  shared[t] = i < n ? x[i] : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint k = 0; k < 32; k++) sum += shared[k];
  if (i < n) y[i] = (kNegate ? -kFactor : kFactor) * x[i] + sum;
}
kernel void add_one(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
[[max_total_threads_per_threadgroup(8 * 8)]] kernel void twice(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }
kernel void beyond(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i + 1] = 1;
}
kernel void beyond_in_a_vector(device packed_int4* v [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  v[i][1] = 1;
}
)";

inline id<MTLDevice> device() {
  static id<MTLDevice> one = MTLCreateSystemDefaultDevice();
  return one;
}
inline id<MTLLibrary> new_shader_library() {
  NSError* error = nil;
  id<MTLLibrary> library = [device() newLibraryWithSource:[NSString stringWithUTF8String:kShader]
                                                  options:nil
                                                    error:&error];
  if (!library) fprintf(stderr, "%s\n", error.localizedDescription.UTF8String);
  CHECK(library);
  return library;
}
inline id<MTLComputePipelineState> new_pipeline_of(NSString* name) {
  id<MTLLibrary> library = new_shader_library();
  id<MTLFunction> function = [library newFunctionWithName:name];
  CHECK(function);
  NSError* error = nil;
  id<MTLComputePipelineState> pipeline = [device() newComputePipelineStateWithFunction:function error:&error];
  CHECK(pipeline && !error);
  [(id)function release];
  [(id)library release];
  return pipeline;
}
inline void encode(id<MTLCommandBuffer> commands, id<MTLComputePipelineState> pipeline, id<MTLBuffer> buffer, int n) {
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:pipeline];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreads:MTLSizeMake(n, 1, 1) threadsPerThreadgroup:MTLSizeMake(8, 1, 1)];
  [encoder endEncoding];
}
