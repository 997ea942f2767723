// Strings, numbers, arrays, dictionaries and errors: as much of each as Metal's interface passes around.
#import <Foundation/Foundation.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

NSString* const NSLocalizedDescriptionKey = @"NSLocalizedDescription";

// The text that follows a format whose objects (%@) are replaced by their descriptions.
static std::string formatted(NSString* format, va_list arguments) {
  std::string result;
  for (const char* at = format.UTF8String; *at; at++) {
    if (*at != '%') {
      result += *at;
      continue;
    }
    const char* start = at++;
    while (*at && strchr("-+ #0123456789.", *at)) at++;
    std::string length;
    while (*at && strchr("hlqzjt", *at)) length += *at++;
    std::string spec(start, at + 1);
    char piece[512];
    if (*at == '@') {
      NSString* text = [va_arg(arguments, id) description];
      result += text ? text.UTF8String : "(null)";
      continue;
    }
    if (*at == '%') {
      result += '%';
      continue;
    }
    if (*at == 's') {
      const char* text = va_arg(arguments, const char*);
      result += text ? text : "(null)";
      continue;
    }
    if (strchr("fFeEgG", *at))
      snprintf(piece, sizeof piece, spec.c_str(), va_arg(arguments, double));
    else if (*at == 'p')
      snprintf(piece, sizeof piece, "%p", va_arg(arguments, void*));
    else if (length.empty() || length[0] == 'h')
      snprintf(piece, sizeof piece, spec.c_str(), va_arg(arguments, int));
    else
      snprintf(piece, sizeof piece, spec.c_str(), va_arg(arguments, long));
    result += piece;
  }
  return result;
}

// ---- Strings. NSString stands for the whole cluster; this is the one kind that is made at run time.

@interface MetalsimString : NSString {
 @public
  std::string* _text;
}
@end

static MetalsimString* new_string(std::string text) {
  MetalsimString* string = [MetalsimString alloc];
  string->_text = new std::string(std::move(text));
  return string;
}

@implementation NSString
@dynamic description;
+ (instancetype)string {
  return [new_string("") autorelease];
}
+ (instancetype)stringWithUTF8String:(const char*)text {
  return [new_string(text) autorelease];
}
+ (instancetype)stringWithFormat:(NSString*)format, ... {
  va_list arguments;
  va_start(arguments, format);
  std::string text = formatted(format, arguments);
  va_end(arguments);
  return [new_string(text) autorelease];
}
- (instancetype)initWithUTF8String:(const char*)text {
  [self release];
  return (id)new_string(text);
}
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding {
  [self release];
  if (encoding != NSUTF8StringEncoding && encoding != NSASCIIStringEncoding) return nil;
  return (id)new_string(std::string((const char*)bytes, length));
}
- (const char*)UTF8String {
  return "";
}
- (NSUInteger)length {
  return strlen([self UTF8String]);
}
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding {
  return strlen([self UTF8String]);
}
- (BOOL)isEqualToString:(NSString*)other {
  return other && !strcmp([self UTF8String], [other UTF8String]);
}
- (BOOL)isEqual:(id)other {
  return [other isKindOfClass:[NSString class]] && [self isEqualToString:other];
}
- (NSUInteger)hash {
  return std::hash<std::string>()([self UTF8String]);
}
- (NSString*)description {
  return self;
}
@end
@implementation MetalsimString
- (const char*)UTF8String {
  return _text->c_str();
}
- (void)dealloc {
  delete _text;
  [super dealloc];
}
@end
@implementation NSConstantString
- (const char*)UTF8String {
  return _text;
}
- (NSUInteger)length {
  return _length;
}
- (instancetype)retain {
  return self;
}
- (oneway void)release {
}
- (instancetype)autorelease {
  return self;
}
@end

void NSLog(NSString* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = formatted(format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s\n", text.c_str());
}

// ---- Numbers.

@interface MetalsimNumber : NSNumber {
 @public
  double _real;
  long _integer;
  BOOL _is_real;
}
@end
static NSNumber* number(long integer, double real, BOOL is_real) {
  MetalsimNumber* made = [MetalsimNumber alloc];
  made->_integer = integer;
  made->_real = real;
  made->_is_real = is_real;
  return [made autorelease];
}
@implementation NSNumber
+ (NSNumber*)numberWithBool:(BOOL)value {
  return number(value ? 1 : 0, 0, NO);
}
+ (NSNumber*)numberWithInt:(int)value {
  return number(value, 0, NO);
}
+ (NSNumber*)numberWithUnsignedInt:(unsigned int)value {
  return number(value, 0, NO);
}
+ (NSNumber*)numberWithLong:(long)value {
  return number(value, 0, NO);
}
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)value {
  return number((long)value, 0, NO);
}
+ (NSNumber*)numberWithUnsignedInteger:(NSUInteger)value {
  return number((long)value, 0, NO);
}
+ (NSNumber*)numberWithFloat:(float)value {
  return number(0, value, YES);
}
+ (NSNumber*)numberWithDouble:(double)value {
  return number(0, value, YES);
}
- (double)doubleValue {
  MetalsimNumber* me = (MetalsimNumber*)self;
  return me->_is_real ? me->_real : (double)me->_integer;
}
- (NSUInteger)unsignedIntegerValue {
  MetalsimNumber* me = (MetalsimNumber*)self;
  return me->_is_real ? (NSUInteger)me->_real : (NSUInteger)me->_integer;
}
- (int)intValue {
  return (int)[self unsignedIntegerValue];
}
- (BOOL)boolValue {
  return [self doubleValue] != 0;
}
- (NSString*)stringValue {
  MetalsimNumber* me = (MetalsimNumber*)self;
  return me->_is_real ? [NSString stringWithFormat:@"%g", me->_real] : [NSString stringWithFormat:@"%ld", me->_integer];
}
- (NSString*)description {
  return [self stringValue];
}
- (BOOL)isEqual:(id)other {
  return [other isKindOfClass:[NSNumber class]] && [self doubleValue] == [other doubleValue];
}
@end
@implementation MetalsimNumber
@end

// ---- Collections, which own their objects.

// Hands out what is left of a collection, in portions. `at` gives its objects by their numbers.
template <class At>
static NSUInteger enumerate(NSFastEnumerationState* state, id* buffer, NSUInteger room, NSUInteger total, At at) {
  static unsigned long never_changes;
  NSUInteger given = 0;
  while (given < room && state->state < total) buffer[given++] = at(state->state++);
  state->itemsPtr = buffer;
  state->mutationsPtr = &never_changes;
  return given;
}

@interface MetalsimArray : NSArray {
 @public
  std::vector<id>* _objects;
}
@end
@implementation NSArray
+ (instancetype)arrayWithObjects:(const id[])objects count:(NSUInteger)count {
  MetalsimArray* array = [MetalsimArray alloc];
  array->_objects = new std::vector<id>(objects, objects + count);
  for (id each : *array->_objects) [each retain];
  return [(id)array autorelease];
}
- (NSUInteger)count {
  return ((MetalsimArray*)self)->_objects->size();
}
- (id)objectAtIndex:(NSUInteger)index {
  std::vector<id>& objects = *((MetalsimArray*)self)->_objects;
  if (index >= objects.size()) {
    fprintf(stderr, "metalsim: -[NSArray objectAtIndex:]: index %lu beyond the %zu objects\n", index, objects.size());
    abort();
  }
  return objects[index];
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state objects:(id*)buffer count:(NSUInteger)count {
  return enumerate(state, buffer, count, [self count], [&](NSUInteger i) { return [self objectAtIndex:i]; });
}
@end
@implementation MetalsimArray
- (void)dealloc {
  for (id each : *_objects) [each release];
  delete _objects;
  [super dealloc];
}
@end

@interface MetalsimDictionary : NSDictionary {
 @public
  std::vector<std::pair<id, id>>* _pairs;
}
@end
@implementation NSDictionary
+ (instancetype)dictionaryWithObjects:(const id[])objects forKeys:(const id<NSCopying>[])keys count:(NSUInteger)count {
  MetalsimDictionary* made = [MetalsimDictionary alloc];
  made->_pairs = new std::vector<std::pair<id, id>>;
  for (NSUInteger i = 0; i < count; i++) made->_pairs->emplace_back([(id)keys[i] retain], [objects[i] retain]);
  return [(id)made autorelease];
}
- (NSUInteger)count {
  return ((MetalsimDictionary*)self)->_pairs->size();
}
- (NSArray*)allKeys {
  std::vector<id> keys;
  for (auto& [key, value] : *((MetalsimDictionary*)self)->_pairs) keys.push_back(key);
  return [NSArray arrayWithObjects:keys.data() count:keys.size()];
}
- (id)objectForKey:(id)wanted {
  for (auto& [key, value] : *((MetalsimDictionary*)self)->_pairs)
    if ([key isEqual:wanted]) return value;
  return nil;
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state objects:(id*)buffer count:(NSUInteger)count {
  auto& pairs = *((MetalsimDictionary*)self)->_pairs;
  return enumerate(state, buffer, count, pairs.size(), [&](NSUInteger i) { return pairs[i].first; });
}
@end
@implementation MetalsimDictionary
- (void)dealloc {
  for (auto& [key, value] : *_pairs) {
    [key release];
    [value release];
  }
  delete _pairs;
  [super dealloc];
}
@end

// ---- Bytes and addresses.

@interface MetalsimData : NSData {
 @public
  std::string* _content;
}
@end
@implementation NSData
+ (instancetype)dataWithBytes:(const void*)bytes length:(NSUInteger)length {
  MetalsimData* data = [MetalsimData alloc];
  data->_content = new std::string((const char*)bytes, length);
  return [(id)data autorelease];
}
- (const void*)bytes {
  return ((MetalsimData*)self)->_content->data();
}
- (NSUInteger)length {
  return ((MetalsimData*)self)->_content->size();
}
@end
@implementation MetalsimData
- (void)dealloc {
  delete _content;
  [super dealloc];
}
@end

@interface MetalsimURL : NSURL {
 @public
  NSString* _path;
}
@end
@implementation NSURL
@dynamic path;
+ (NSURL*)fileURLWithPath:(NSString*)path {
  MetalsimURL* url = [MetalsimURL alloc];
  url->_path = [path retain];
  return [url autorelease];
}
@end
@implementation MetalsimURL
- (NSString*)path {
  return _path;
}
- (NSString*)description {
  return [NSString stringWithFormat:@"file://%@", _path];
}
- (void)dealloc {
  [_path release];
  [super dealloc];
}
@end

// ---- Errors.

@interface MetalsimError : NSError {
 @public
  NSString* _domain;
  NSInteger _code;
  NSDictionary* _info;
}
@end
@implementation NSError
@dynamic domain, code, userInfo, localizedDescription;
+ (instancetype)errorWithDomain:(NSString*)domain code:(NSInteger)code userInfo:(NSDictionary*)info {
  MetalsimError* error = [MetalsimError alloc];
  error->_domain = [domain retain];
  error->_code = code;
  error->_info = [(id)info retain];
  return [error autorelease];
}
@end
@implementation MetalsimError
- (NSString*)domain {
  return _domain;
}
- (NSInteger)code {
  return _code;
}
- (NSDictionary*)userInfo {
  return _info;
}
- (NSString*)localizedDescription {
  NSString* text = [_info objectForKey:NSLocalizedDescriptionKey];
  return text ? text : [NSString stringWithFormat:@"%@ error %ld", _domain, (long)_code];
}
- (NSString*)description {
  return [self localizedDescription];
}
- (void)dealloc {
  [_domain release];
  [(id)_info release];
  [super dealloc];
}
@end
