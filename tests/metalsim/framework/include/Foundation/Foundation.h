// The part of Foundation that Metal's interface and torch's headers need: on Linux over GNU libobjc, implemented in
// ../../src; for the Mac check over Apple's own Objective-C headers, declarations only.
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <objc/objc.h>
#ifdef __APPLE__
#include <objc/NSObject.h>
#else
#undef nil
#define nil __null  // as Apple's; GNU's (id)0 does not convert to NSError**
#undef YES
#undef NO
#define YES __objc_yes  // as Apple's, so that @YES is a number
#define NO __objc_no
typedef unsigned long NSUInteger;
typedef long NSInteger;
#endif
#include <dispatch/dispatch.h>

typedef double NSTimeInterval;
typedef double CFTimeInterval;
typedef NSUInteger NSStringEncoding;
typedef struct {
  NSUInteger location, length;
} NSRange;
static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  NSRange range = {location, length};
  return range;
}
#undef NS_ENUM
#undef NS_OPTIONS
#define NS_ENUM(Type, Name) \
  enum Name : Type Name;    \
  enum Name : Type
// Flags are plain integers in C++, so that `|` keeps the type.
#define NS_OPTIONS(Type, Name) \
  Type Name;                   \
  enum : Name

enum : NSStringEncoding { NSASCIIStringEncoding = 1, NSUTF8StringEncoding = 4 };

@class NSString, NSError, NSDictionary, NSArray, NSNumber, NSURL, NSData;

#ifndef __APPLE__
@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
- (NSString*)description;
- (Class)class;
- (BOOL)isKindOfClass:(Class)kind;
- (BOOL)respondsToSelector:(SEL)selector;
- (BOOL)isEqual:(id)other;
- (NSUInteger)hash;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
  Class isa;  // and nothing else: constant strings are laid out {isa, char*, unsigned}
}
+ (instancetype)alloc;
+ (instancetype)new;
+ (Class)class;
- (instancetype)init;
- (void)dealloc;
@end
#endif

@protocol NSCopying
@end

// What `for (id each in collection)` asks for. Subscripts, `array[0]`, don't compile for GNU's runtime.
typedef struct {
  unsigned long state;
  __unsafe_unretained id* itemsPtr;
  unsigned long* mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;
@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state
                                  objects:(__unsafe_unretained id[])buffer
                                    count:(NSUInteger)count;
@end

@interface NSAutoreleasePool : NSObject
#ifndef __APPLE__
{
  void* _state;  // this runtime wants instance variables in the interface
}
#endif
- (void)drain;
@end

@interface NSString : NSObject <NSCopying>
+ (instancetype)string;
+ (instancetype)stringWithUTF8String:(const char*)text;
+ (instancetype)stringWithFormat:(NSString*)format, ... __attribute__((format(__NSString__, 1, 2)));
- (instancetype)initWithUTF8String:(const char*)text;
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
- (const char*)UTF8String;
- (NSUInteger)length;
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding;
- (BOOL)isEqualToString:(NSString*)other;
@property(readonly, copy) NSString* description;
@end

#ifndef __APPLE__
@interface NSConstantString : NSString {
 @public
  const char* _text;
  unsigned _length;
}
@end
#endif

@interface NSNumber : NSObject <NSCopying>
+ (NSNumber*)numberWithBool:(BOOL)value;
+ (NSNumber*)numberWithInt:(int)value;
+ (NSNumber*)numberWithUnsignedInt:(unsigned int)value;
+ (NSNumber*)numberWithLong:(long)value;
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)value;
+ (NSNumber*)numberWithUnsignedInteger:(NSUInteger)value;
+ (NSNumber*)numberWithFloat:(float)value;
+ (NSNumber*)numberWithDouble:(double)value;
- (BOOL)boolValue;
- (int)intValue;
- (NSUInteger)unsignedIntegerValue;
- (double)doubleValue;
- (NSString*)stringValue;
@end

@interface NSArray<__covariant Element> : NSObject <NSFastEnumeration>
+ (instancetype)arrayWithObjects:(const Element[])objects count:(NSUInteger)count;
- (NSUInteger)count;
- (Element)objectAtIndex:(NSUInteger)index;
@end

@interface NSDictionary<__covariant Key, __covariant Value> : NSObject <NSFastEnumeration>
+ (instancetype)dictionaryWithObjects:(const Value[])objects
                              forKeys:(const Key<NSCopying>[])keys
                                count:(NSUInteger)count;
- (NSUInteger)count;
- (NSArray<Key>*)allKeys;
- (Value)objectForKey:(Key)key;
@end

@interface NSData : NSObject
+ (instancetype)dataWithBytes:(const void*)bytes length:(NSUInteger)length;
- (const void*)bytes;
- (NSUInteger)length;
@end

@interface NSURL : NSObject
+ (NSURL*)fileURLWithPath:(NSString*)path;
@property(readonly, copy) NSString* path;
@end

typedef NSString* NSErrorDomain;
@interface NSError : NSObject
+ (instancetype)errorWithDomain:(NSErrorDomain)domain code:(NSInteger)code userInfo:(NSDictionary*)info;
@property(readonly, copy) NSErrorDomain domain;
@property(readonly) NSInteger code;
@property(readonly, copy) NSDictionary* userInfo;
@property(readonly, copy) NSString* localizedDescription;
@end

#ifdef __cplusplus
extern "C" {
#endif
extern NSString* const NSLocalizedDescriptionKey;
void NSLog(NSString* format, ...) __attribute__((format(__NSString__, 1, 2)));
#ifdef __cplusplus
}
#endif
