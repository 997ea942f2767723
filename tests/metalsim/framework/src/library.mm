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

namespace {
// A type of function constants, by its name in Metal. Vectors of two to four follow the scalar in MTLDataType.
struct ConstantType {
  std::string name;
  size_t bytes = 0;
};
struct Scalar {
  MTLDataType type;
  const char* name;
  size_t bytes;
};
constexpr Scalar kScalars[] = {
    {MTLDataTypeFloat, "float", 4}, {MTLDataTypeHalf, "half", 2},   {MTLDataTypeInt, "int", 4},
    {MTLDataTypeUInt, "uint", 4},   {MTLDataTypeShort, "short", 2}, {MTLDataTypeUShort, "ushort", 2},
    {MTLDataTypeChar, "char", 1},   {MTLDataTypeUChar, "uchar", 1}, {MTLDataTypeBool, "bool", 1},
    {MTLDataTypeLong, "long", 8},   {MTLDataTypeULong, "ulong", 8}, {MTLDataTypeBFloat, "bfloat", 2},
};
}  // namespace

// With no bytes for a type that no function constant has.
static ConstantType constant_type(MTLDataType type) {
  for (const Scalar& scalar : kScalars) {
    NSUInteger elements = type - scalar.type + 1;
    if (type < scalar.type || elements > 4) continue;
    // Three elements take the room of four.
    return {scalar.name + (elements > 1 ? std::to_string(elements) : ""),
            scalar.bytes * (elements == 3 ? 4 : elements)};
  }
  return {};
}
// As constant_type names it, or "" where the shader has a name of its own for the type.
static std::string plain_type(const std::string& text) {
  static const std::map<std::string, const char*> other_names = {
      {"unsigned", "uint"},       {"unsigned int", "uint"}, {"unsigned short", "ushort"}, {"unsigned char", "uchar"},
      {"unsigned long", "ulong"}, {"int32_t", "int"},       {"uint32_t", "uint"},         {"int16_t", "short"},
      {"uint16_t", "ushort"},     {"int8_t", "char"},       {"uint8_t", "uchar"},         {"int64_t", "long"},
      {"uint64_t", "ulong"},      {"size_t", "ulong"},      {"float32_t", "float"},
  };
  size_t scope = text.rfind(':');
  std::string name = scope == std::string::npos ? text : text.substr(text.find_first_not_of(' ', scope + 1));
  auto other = other_names.find(name);
  if (other != other_names.end()) return other->second;
  for (const Scalar& scalar : kScalars)
    for (const char* elements : {"", "2", "3", "4"})
      if (name == std::string(scalar.name) + elements) return name;
  return "";
}

using Values = std::vector<GivenConstant>;

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
  ConstantType known = constant_type(type);
  if (!known.bytes) {
    report_misuse("-[MTLFunctionConstantValues setConstantValue:type:...]: type " + std::to_string(type) +
                  " is none of a function constant");
    return;
  }
  auto& values = *(Values*)_values;
  std::erase_if(values, [&](const GivenConstant& v) { return v.index == index && v.name == name; });
  values.push_back({index, name, known.name, std::string((const char*)value, known.bytes)});
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  [self set:value type:type index:(int)index name:""];
}
- (void)setConstantValues:(const void*)values type:(MTLDataType)type withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; i++)
    [self set:(const char*)values + i * constant_type(type).bytes type:type index:(int)(range.location + i) name:""];
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

@implementation MTLComputePipelineDescriptor
- (void)dealloc {
  [self reset];
  [super dealloc];
}
- (void)reset {
  self.label = nil;
  self.computeFunction = nil;
  _max_threads = 0;
  _whole_simdgroups = NO;
}
- (NSString*)label {
  return _label;
}
- (void)setLabel:(NSString*)label {
  [label retain];
  [_label release];
  _label = label;
}
- (id<MTLFunction>)computeFunction {
  return _function;
}
- (void)setComputeFunction:(id<MTLFunction>)function {
  [(id)function retain];
  [(id)_function release];
  _function = function;
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return _max_threads;
}
- (void)setMaxTotalThreadsPerThreadgroup:(NSUInteger)threads {
  _max_threads = threads;
}
- (BOOL)threadGroupSizeIsMultipleOfThreadExecutionWidth {
  return _whole_simdgroups;
}
- (void)setThreadGroupSizeIsMultipleOfThreadExecutionWidth:(BOOL)whole {
  _whole_simdgroups = whole;
}
@end

@implementation MetalsimPipeline
- (void)dealloc {
  [_function release];
  [_label release];
  [super dealloc];
}
- (NSString*)label {
  return _label;
}
- (id<MTLDevice>)device {
  return [MetalsimDevice shared];
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return _max_threads;
}
- (NSUInteger)threadExecutionWidth {
  return kSimdgroup;
}
// Not known before the kernel runs; what it declares is counted against the limit then.
- (NSUInteger)staticThreadgroupMemoryLength {
  return 0;
}
@end

id<MTLComputePipelineState> new_pipeline(MTLComputePipelineDescriptor* descriptor, NSError** error) {
  MetalsimFunction* function = (MetalsimFunction*)descriptor.computeFunction;
  std::string problem;
  NSUInteger asked = descriptor.maxTotalThreadsPerThreadgroup;
  if (!function) problem = "the descriptor has no function";
  if (asked > kMaxThreads) problem = std::to_string(asked) + " threads in a threadgroup; the device's limit is 1024";
  if (!problem.empty()) {
    report_misuse("-[MTLDevice newComputePipelineStateWithDescriptor:options:reflection:error:]: " + problem);
    if (error) *error = error_with(MTLLibraryErrorDomain, MTLLibraryErrorUnsupported, problem);
    return nil;
  }
  MetalsimPipeline* pipeline = [MetalsimPipeline alloc];
  pipeline->_function = [function retain];
  pipeline->_label = [(descriptor.label ? descriptor.label : function.label) retain];
  pipeline->_max_threads = asked ? asked : (*function->_program)->kernels().at(*function->_host_name).max_threads;
  pipeline->_whole_simdgroups = descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth;
  return pipeline;
}

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
// A value of another type than the constant's. Where we don't know the type by its name, its size decides.
- (std::string)mismatchIn:(const Values&)values {
  for (const GivenConstant& value : values)
    for (const ConstantInfo& constant : (*_program)->constants()) {
      if (value.index >= 0 ? value.index != constant.index : value.name != constant.name) continue;
      std::string type = plain_type(constant.type);
      if (type.empty() ? value.bytes.size() != constant.size : value.type != type)
        return "function constant '" + constant.name + "' is of the type " + constant.type +
               ", the value given for it of the type " + value.type;
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
