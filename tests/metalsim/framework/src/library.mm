// Libraries, functions, constants and pipelines.
#include <cstring>
#include <stdexcept>

#include "internal.h"

using namespace metalsim;

// ---- Compile options and constants.

@implementation MTLCompileOptions
- (instancetype)init {
  _fast = YES;
  _mode = MTLMathModeFast;
  _version = MTLLanguageVersion3_2;
  return self;
}
- (void)dealloc {
  [(id)_macros release];
  [super dealloc];
}
- (NSDictionary*)preprocessorMacros {
  return _macros;
}
- (void)setPreprocessorMacros:(NSDictionary*)macros {
  [(id)macros retain];
  [(id)_macros release];
  _macros = macros;
}
- (BOOL)fastMathEnabled {
  return _fast;
}
- (void)setFastMathEnabled:(BOOL)fast {
  _fast = fast;
  _mode = fast ? MTLMathModeFast : MTLMathModeSafe;
}
- (MTLMathMode)mathMode {
  return _mode;
}
- (void)setMathMode:(MTLMathMode)mode {
  _mode = mode;
  _fast = mode == MTLMathModeFast;
}
- (MTLLanguageVersion)languageVersion {
  return _version;
}
- (void)setLanguageVersion:(MTLLanguageVersion)version {
  _version = version;
}
@end

// Bytes of a scalar or vector type; 0 for one that no function constant has.
static size_t size_of(MTLDataType type) {
  auto vector = [&](NSUInteger scalar, size_t bytes) -> size_t {
    NSUInteger extra = type - scalar;  // 0 to 3: one to four elements, of which three take the room of four
    return bytes * (extra == 2 ? 4 : extra + 1);
  };
  switch (type) {
    case MTLDataTypeFloat ... MTLDataTypeFloat4:
      return vector(MTLDataTypeFloat, 4);
    case MTLDataTypeHalf ... MTLDataTypeHalf4:
      return vector(MTLDataTypeHalf, 2);
    case MTLDataTypeInt ... MTLDataTypeInt4:
      return vector(MTLDataTypeInt, 4);
    case MTLDataTypeUInt ... MTLDataTypeUInt4:
      return vector(MTLDataTypeUInt, 4);
    case MTLDataTypeShort:
    case MTLDataTypeUShort:
    case MTLDataTypeBFloat:
      return 2;
    case MTLDataTypeChar:
    case MTLDataTypeUChar:
    case MTLDataTypeBool:
      return 1;
    case MTLDataTypeLong:
    case MTLDataTypeULong:
      return 8;
    default:
      return 0;
  }
}

using Values = std::vector<ConstantValue>;

@implementation MTLFunctionConstantValues
- (instancetype)init {
  _values = new Values;
  return self;
}
- (void)dealloc {
  delete (Values*)_values;
  [super dealloc];
}
- (void)reset {
  ((Values*)_values)->clear();
}
- (void)set:(const void*)value type:(MTLDataType)type index:(int)index name:(const std::string&)name {
  size_t size = size_of(type);
  if (!size) {
    report_misuse("-[MTLFunctionConstantValues setConstantValue:type:...]: type " + std::to_string(type) +
                  " is none of a function constant");
    return;
  }
  auto& values = *(Values*)_values;
  std::erase_if(values, [&](const ConstantValue& v) { return v.index == index && v.name == name; });
  values.push_back({index, name, std::string((const char*)value, size)});
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  [self set:value type:type index:(int)index name:""];
}
- (void)setConstantValues:(const void*)values type:(MTLDataType)type withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; i++)
    [self set:(const char*)values + i * size_of(type) type:type index:(int)(range.location + i) name:""];
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type withName:(NSString*)name {
  [self set:value type:type index:-1 name:name.UTF8String];
}
@end

// ---- Functions and pipelines.

@implementation MetalsimFunction
- (void)dealloc {
  delete _program;
  delete _host_name;
  delete _constants;
  [_label release];
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (NSString*)name {
  return string_of(*_host_name);
}
- (MTLFunctionType)functionType {
  return MTLFunctionTypeKernel;
}
- (NSString*)label {
  return _label;
}
- (void)setLabel:(NSString*)label {
  [label retain];
  [_label release];
  _label = label;
}
@end

@implementation MetalsimPipeline
- (void)dealloc {
  [_function release];
  [super dealloc];
}
- (NSString*)label {
  return [_function label];
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return (*_function->_program)->kernels().at(*_function->_host_name).max_threads;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
// Not known before the kernel runs; what it declares is counted against the limit then.
- (NSUInteger)staticThreadgroupMemoryLength {
  return 0;
}
@end

// ---- Libraries.

@interface MetalsimLibrary : NSObject <MTLLibrary> {
 @public
  std::shared_ptr<Program>* _program;
  NSString* _label;
}
@end
@implementation MetalsimLibrary
- (void)dealloc {
  delete _program;
  [_label release];
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (NSString*)label {
  return _label;
}
- (void)setLabel:(NSString*)label {
  [label retain];
  [_label release];
  _label = label;
}
- (NSArray<NSString*>*)functionNames {
  std::vector<id> names;
  for (const auto& [name, kernel] : (*_program)->kernels()) names.push_back(string_of(name));
  return [NSArray arrayWithObjects:names.data() count:names.size()];
}
- (MetalsimFunction*)newFunctionNamed:(NSString*)name constants:(const Values&)values {
  if (!(*_program)->kernels().count(name.UTF8String)) return nil;
  MetalsimFunction* function = [MetalsimFunction alloc];
  function->_program = new std::shared_ptr<Program>(*_program);
  function->_host_name = new std::string(name.UTF8String);
  function->_constants = new Values(values);
  return function;
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  return [self newFunctionNamed:name constants:{}];
}
// A value of another size than the constant's is a value of another type.
- (std::string)mismatchIn:(const Values&)values {
  for (const ConstantValue& value : values)
    for (const ConstantInfo& constant : (*_program)->constants()) {
      bool meant = value.index >= 0 ? value.index == constant.index : value.name == constant.name;
      if (meant && value.bytes.size() != constant.size)
        return "function constant '" + constant.name + "' has " + std::to_string(constant.size) +
               " bytes, the value given for it has " + std::to_string(value.bytes.size());
    }
  return "";
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)constants
                                 error:(NSError**)error {
  const auto& values = *(Values*)constants->_values;
  std::string problem = [self mismatchIn:values];
  MetalsimFunction* function = problem.empty() ? [self newFunctionNamed:name constants:values] : nil;
  if (!function && error)
    *error = problem.empty() ? error_with(MTLLibraryErrorDomain, MTLLibraryErrorFunctionNotFound,
                                          std::string("no function is called '") + name.UTF8String + "'")
                             : error_with(MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, problem);
  return function;
}
@end

id<MTLLibrary> new_library(NSString* source, MTLCompileOptions* options, NSError** error) {
  std::vector<std::string> defines;
  NSDictionary* macros = options.preprocessorMacros;
  NSArray* keys = [macros allKeys];
  for (NSUInteger i = 0; i < keys.count; i++) {
    NSString* key = [keys objectAtIndex:i];
    defines.push_back(std::string("-D") + key.UTF8String + "=" + [[macros objectForKey:key] description].UTF8String);
  }
  try {
    auto program = std::make_shared<Program>(source.UTF8String, defines);
    MetalsimLibrary* library = [MetalsimLibrary alloc];
    library->_program = new std::shared_ptr<Program>(program);
    return library;
  } catch (const std::runtime_error& failure) {
    if (error) *error = error_with(MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, failure.what());
    return nil;
  }
}

id<MTLComputePipelineState> new_pipeline(id<MTLFunction> function, NSError** error) {
  if (!function) {
    report_misuse("-[MTLDevice newComputePipelineStateWithFunction:error:]: the function is nil");
    if (error) *error = error_with(MTLLibraryErrorDomain, MTLLibraryErrorFunctionNotFound, "the function is nil");
    return nil;
  }
  MetalsimPipeline* pipeline = [MetalsimPipeline alloc];
  pipeline->_function = [(MetalsimFunction*)function retain];
  return pipeline;
}
