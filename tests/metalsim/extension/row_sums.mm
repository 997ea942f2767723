// A small torch extension, as ours is built: torch's stable ABI, Metal driven directly on torch's stream. With it the
// simulated device is proven end to end, and the Mac check has something to check.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

// torch's own headers for these are closed to users of the stable ABI; torch exports the symbols.
namespace torch::mps {
dispatch_queue_t get_dispatch_queue();
}
namespace at::mps {
class MPSStream {
 public:
  id<MTLComputeCommandEncoder> commandEncoder();
  id<MTLDevice> device() const;
};
MPSStream* getCurrentMPSStream();
}  // namespace at::mps

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr const char* kSource = R"(
#include <metal_stdlib>
using namespace metal;

constant int kPower [[function_constant(0)]];
constant bool kScaled [[function_constant(1)]];
constant bool kHasScale = is_function_constant_defined(kScaled) && kScaled;

// One threadgroup a row: y[row] = scale * sum over k of x[row][k] ^ kPower.
kernel void row_sums(device const float* x [[buffer(0)]],
                     device float* y [[buffer(1)]],
                     constant uint& columns [[buffer(2)]],
                     constant float& scale [[buffer(3)]],
                     threadgroup float* partial [[threadgroup(0)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]]) {
  float sum = 0;
  for (uint k = thread_index; k < columns; k += threads) {
    float value = x[ulong(row) * columns + k];
    for (int i = 1; i < kPower; i++) value *= x[ulong(row) * columns + k];
    sum += value;
  }
  partial[thread_index] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint half_of = threads / 2; half_of > 0; half_of /= 2) {
    if (thread_index < half_of) partial[thread_index] += partial[thread_index + half_of];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (thread_index == 0) y[row] = kHasScale ? partial[0] * scale : partial[0];
}
)";
constexpr NSUInteger kThreads = 64;

const char* reason(NSError* error) { return error ? error.localizedDescription.UTF8String : "no reason given"; }

id<MTLLibrary> library(id<MTLDevice> device) {
  static id<MTLLibrary> built = nil;
  if (built) return built;
  NSError* error = nil;
  built = [device newLibraryWithSource:[NSString stringWithUTF8String:kSource] options:nil error:&error];
  STD_TORCH_CHECK(built != nil, "row_sums: the shader does not compile: ", reason(error));
  return built;
}

// The caller releases it.
id<MTLComputePipelineState> new_pipeline(id<MTLDevice> device, int32_t power, bool scaled) {
  MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
  [values setConstantValue:&power type:MTLDataTypeInt atIndex:0];
  [values setConstantValue:&scaled type:MTLDataTypeBool atIndex:1];
  NSError* error = nil;
  id<MTLFunction> function = [library(device) newFunctionWithName:@"row_sums" constantValues:values error:&error];
  [values release];
  STD_TORCH_CHECK(function != nil, "row_sums: no such function: ", reason(error));
  id<MTLComputePipelineState> pipeline = [device newComputePipelineStateWithFunction:function error:&error];
  [(id)function release];
  STD_TORCH_CHECK(pipeline != nil, "row_sums: no pipeline: ", reason(error));
  return pipeline;
}

// On MPS a storage's data pointer is its MTLBuffer, so that a tensor's is the buffer plus the offset in bytes.
struct Binding {
  id<MTLBuffer> buffer;
  NSUInteger offset;
  explicit Binding(const Tensor& tensor) {
    offset = (NSUInteger)tensor.storage_offset() * tensor.element_size();
    buffer = (__bridge id<MTLBuffer>)(void*)((char*)tensor.data_ptr() - offset);
  }
};

Tensor row_sums(const Tensor& x, int64_t power, double scale) {
  STD_TORCH_CHECK(x.dim() == 2 && x.scalar_type() == ScalarType::Float && x.is_contiguous(),
                  "row_sums: x must be a contiguous float32 matrix");
  Tensor y = torch::stable::new_empty(x, {x.size(0)});
  if (x.size(0) == 0) return y;
  uint32_t columns = (uint32_t)x.size(1);
  float factor = (float)scale;
  @autoreleasepool {
    at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
    id<MTLComputePipelineState> pipeline = new_pipeline(stream->device(), (int32_t)power, scale != 1);
    Binding from(x), to(y);
    NSUInteger rows = (NSUInteger)x.size(0);
    dispatch_sync(torch::mps::get_dispatch_queue(), ^{
      // The stream's own encoder: torch ends it.
      id<MTLComputeCommandEncoder> encoder = stream->commandEncoder();
      [encoder setComputePipelineState:pipeline];
      [encoder setBuffer:from.buffer offset:from.offset atIndex:0];
      [encoder setBuffer:to.buffer offset:to.offset atIndex:1];
      [encoder setBytes:&columns length:sizeof columns atIndex:2];
      [encoder setBytes:&factor length:sizeof factor atIndex:3];
      [encoder setThreadgroupMemoryLength:kThreads * sizeof(float) atIndex:0];
      [encoder dispatchThreadgroups:MTLSizeMake(rows, 1, 1) threadsPerThreadgroup:MTLSizeMake(kThreads, 1, 1)];
    });
    [(id)pipeline release];
  }
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(metalsim_example, m) { m.def("row_sums(Tensor x, int power, float scale) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(metalsim_example, MPS, m) { m.impl("row_sums", TORCH_BOX(&row_sums)); }
