// torch's own way to run Metal source: the classes behind torch.mps.compile_shader and inductor's kernels.
#include <ATen/mps/MPSStream.h>
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <algorithm>

#include "device.h"

namespace at::native::mps {

using at::mps::getCurrentMPSStream;
using at::mps::MPSDevice;

static NSString* string_of(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
static std::string message_of(NSError* error) {
  return error ? error.localizedDescription.UTF8String : "no reason given";
}
static id<MTLBuffer> buffer_of(const TensorBase& tensor) { return (id<MTLBuffer>)tensor.storage().mutable_data(); }

void* get_tensor_gpu_address(const TensorBase& tensor) {
  return (char*)[buffer_of(tensor) gpuAddress] + tensor.storage_offset() * tensor.element_size();
}

// ---- Libraries.

MetalShaderLibrary::~MetalShaderLibrary() {
  kernelCache.clear();
  for (auto& [name, pair] : cplMap) {
    [(id)pair.first release];
    [(id)pair.second release];
  }
  for (auto& [key, built] : libMap) [(id)built release];
}
DynamicMetalShaderLibrary::~DynamicMetalShaderLibrary() {
  [(id)library release];
  library = nil;
}

MTLLibrary_t MetalShaderLibrary::compileLibrary(const std::string& source) {
  std::string reason;
  @autoreleasepool {
    NSError* error = nil;
    id<MTLLibrary> built = [MPSDevice::getInstance()->device() newLibraryWithSource:string_of(source)
                                                                            options:compile_options
                                                                              error:&error];
    if (built) return built;
    reason = message_of(error);
  }
  throw c10::SyntaxError({__func__, __FILE__, __LINE__}, reason);
}
MTLLibrary_t MetalShaderLibrary::getLibrary() {
  TORCH_CHECK(nparams == 0, "this library's source has ", nparams, " parameters, which must be given");
  if (!library) library = compileLibrary(shaderSource);
  return library;
}
// The source's `{0}`, `{1}` ... are filled in, as torch's own sources have them.
MTLLibrary_t MetalShaderLibrary::getLibrary(const std::initializer_list<std::string>& params) {
  TORCH_CHECK(params.size() == nparams, "this library's source has ", nparams, " parameters, got ", params.size());
  std::string key, source = shaderSource;
  size_t number = 0;
  for (const std::string& param : params) {
    std::string place = "{" + std::to_string(number++) + "}";
    for (size_t at = 0; (at = source.find(place, at)) != std::string::npos; at += param.size())
      source.replace(at, place.size(), param);
    key += param + ":";
  }
  MTLLibrary_t& built = libMap[key];
  if (!built) built = compileLibrary(source);
  return built;
}

std::pair<MTLComputePipelineState_t, MTLFunction_t> MetalShaderLibrary::getLibraryPipelineState(
    MTLLibrary_t from, const std::string& name) {
  std::string key = std::to_string((uintptr_t)from) + ":" + name;
  auto found = cplMap.find(key);
  if (found != cplMap.end()) return found->second;
  id<MTLFunction> function = nil;
  id<MTLComputePipelineState> pipeline = nil;
  std::string reason;
  @autoreleasepool {
    NSError* error = nil;
    function = [from newFunctionWithName:string_of(name)];
    if (function)
      pipeline = [MPSDevice::getInstance()->device() newComputePipelineStateWithFunction:function error:&error];
    reason = message_of(error);
  }
  TORCH_CHECK(function, "Failed to create function state object for: ", name);
  TORCH_CHECK(pipeline, "Failed to create pipeline state object for: ", name, ": ", reason);
  return cplMap[key] = {pipeline, function};
}

std::vector<std::string> MetalShaderLibrary::getFunctionNames() {
  std::vector<std::string> names;
  @autoreleasepool {
    NSArray<NSString*>* all = [getLibrary() functionNames];
    for (NSUInteger i = 0; i < all.count; i++) names.emplace_back([[all objectAtIndex:i] UTF8String]);
  }
  return names;
}
bool MetalShaderLibrary::hasFunction(const std::string& name) {
  if (!functionNamesPopulated) {
    for (std::string& each : getFunctionNames()) functionNames.insert(std::move(each));
    functionNamesPopulated = true;
  }
  return functionNames.count(name);
}
std::shared_ptr<MetalKernelFunction> MetalShaderLibrary::getKernelFunction(const std::string& name) {
  auto [pipeline, function] = getLibraryPipelineState(getLibrary(), name);
  return std::make_shared<MetalKernelFunction>([(id)pipeline retain], [(id)function retain]);
}
MetalKernelFunction* MetalShaderLibrary::getCachedKernelFunctionPtr(const std::string& name) {
  auto& cached = kernelCache[name];
  if (!cached) {
    auto [pipeline, function] = getLibraryPipelineState(getLibrary(), name);
    cached = std::make_unique<MetalKernelFunction>([(id)pipeline retain], [(id)function retain]);
  }
  return cached.get();
}

// ---- Kernels.

MetalKernelFunction::MetalKernelFunction(MTLComputePipelineState_t pipeline, MTLFunction_t function)
    : cps(pipeline), func(function) {}
MetalKernelFunction::~MetalKernelFunction() {
  [(id)cps release];
  [(id)func release];
}
uint64_t MetalKernelFunction::getMaxThreadsPerThreadgroup() const { return [cps maxTotalThreadsPerThreadgroup]; }
uint64_t MetalKernelFunction::getThreadExecutionWidth() const { return [cps threadExecutionWidth]; }
uint64_t MetalKernelFunction::getStaticThreadGroupMemoryLength() const { return [cps staticThreadgroupMemoryLength]; }

void MetalKernelFunction::runCommandBlock(std::function<void(void)> run) {
  at::mps::dispatch_sync_with_rethrow(getCurrentMPSStream()->queue(), ^{
    run();
  });
}
void MetalKernelFunction::startEncoding() {
  encoder = getCurrentMPSStream()->commandEncoder();
  [encoder setComputePipelineState:cps];
}
void MetalKernelFunction::setArg(unsigned index, const TensorBase& tensor) {
  TORCH_CHECK(tensor.device().is_mps() || (tensor.device().is_cpu() && !tensor.dim()),
              "Tensors must be on the mps device, argument ", index, " is on ", tensor.device());
  if (tensor.device().is_cpu()) return setArg(index, tensor.const_data_ptr(), tensor.element_size());
  [encoder setBuffer:buffer_of(tensor) offset:tensor.storage_offset() * tensor.element_size() atIndex:index];
}
void MetalKernelFunction::setArg(unsigned index, const void* bytes, uint64_t size) {
  TORCH_CHECK(size > 0, "argument ", index, " is empty");
  [encoder setBytes:bytes length:size atIndex:index];
}
void MetalKernelFunction::setErrorBufferIndex(unsigned index) {
  [encoder setBuffer:getCurrentMPSStream()->getErrorBuffer() offset:0 atIndex:index];
}
void MetalKernelFunction::dispatch(uint64_t length, std::optional<uint64_t> group) {
  if (group)
    dispatch(c10::ArrayRef<uint64_t>(length), c10::ArrayRef<uint64_t>(*group));
  else
    dispatch(c10::ArrayRef<uint64_t>(length));
}
void MetalKernelFunction::dispatch(c10::ArrayRef<uint64_t> length, c10::OptionalArrayRef<uint64_t> group) {
  TORCH_CHECK(!length.empty() && length.size() < 4, "Dispatch dimensions must be less than 3 and non-empty");
  TORCH_CHECK(!group.has_value() || group->size() == length.size(), "Dispatch sizes mismatch");
  uint64_t most = getMaxThreadsPerThreadgroup();
  uint64_t threads[3] = {1, 1, 1}, threadgroup[3] = {1, 1, 1};
  for (size_t i = 0; i < length.size(); i++) threads[i] = length[i];
  // Unasked, a threadgroup runs along the first axis.
  threadgroup[0] = std::min(most, threads[0]);
  if (group.has_value()) std::copy(group->begin(), group->end(), threadgroup);
  uint64_t total = threadgroup[0] * threadgroup[1] * threadgroup[2];
  TORCH_CHECK(total > 0 && total <= most, "Threadgroup of ", total, " threads, but the kernel takes 1 to ", most);
  [encoder dispatchThreads:MTLSizeMake(threads[0], threads[1], threads[2])
      threadsPerThreadgroup:MTLSizeMake(threadgroup[0], threadgroup[1], threadgroup[2])];
}

}  // namespace at::native::mps
