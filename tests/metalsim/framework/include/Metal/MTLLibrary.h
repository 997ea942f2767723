#pragma once
#import <Metal/MTLTypes.h>

typedef NS_ENUM(NSUInteger, MTLLanguageVersion) {
  MTLLanguageVersion2_4 = (2 << 16) + 4,
  MTLLanguageVersion3_0 = (3 << 16) + 0,
  MTLLanguageVersion3_1 = (3 << 16) + 1,
  MTLLanguageVersion3_2 = (3 << 16) + 2,
};
typedef NS_ENUM(NSInteger, MTLMathMode) {
  MTLMathModeSafe = 0,
  MTLMathModeRelaxed = 1,
  MTLMathModeFast = 2,
};
typedef NS_ENUM(NSUInteger, MTLFunctionType) {
  MTLFunctionTypeVertex = 1,
  MTLFunctionTypeFragment = 2,
  MTLFunctionTypeKernel = 3,
};
typedef NS_ENUM(NSUInteger, MTLLibraryError) {
  MTLLibraryErrorUnsupported = 1,
  MTLLibraryErrorInternal = 2,
  MTLLibraryErrorCompileFailure = 3,
  MTLLibraryErrorCompileWarning = 4,
  MTLLibraryErrorFunctionNotFound = 5,
  MTLLibraryErrorFileNotFound = 6,
};
#ifdef __cplusplus
extern "C" {
#endif
extern NSErrorDomain const MTLLibraryErrorDomain;
#ifdef __cplusplus
}
#endif

@interface MTLCompileOptions : NSObject
#ifndef __APPLE__
{
  NSDictionary* _macros;
  BOOL _fast;
  MTLMathMode _mode;
  MTLLanguageVersion _version;
}
#endif
@property(copy) NSDictionary<NSString*, NSObject*>* preprocessorMacros;
@property BOOL fastMathEnabled;
@property MTLMathMode mathMode;
@property MTLLanguageVersion languageVersion;
@end

@interface MTLFunctionConstantValues : NSObject
#ifndef __APPLE__
{
 @public
  void* _values;
}
#endif
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index;
- (void)setConstantValues:(const void*)values type:(MTLDataType)type withRange:(NSRange)range;
- (void)setConstantValue:(const void*)value type:(MTLDataType)type withName:(NSString*)name;
- (void)reset;
@end

@protocol MTLFunction <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) NSString* name;
@property(readonly) MTLFunctionType functionType;
@end

@protocol MTLLibrary <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) NSArray<NSString*>* functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString*)name;
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)values
                                 error:(NSError**)error;
@end
