// clang gives code in Objective-C++ GNU libobjc's personality routine, which knows Objective-C's exceptions only and
// lets C++ ones pass every handler. This definition comes before libobjc's and takes C++'s routine instead; nothing
// here or in torch throws Objective-C exceptions.
#include <unwind.h>

extern "C" _Unwind_Reason_Code __gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class, _Unwind_Exception*,
                                                    _Unwind_Context*);
extern "C" __attribute__((visibility("default"))) _Unwind_Reason_Code
__gnu_objc_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                          _Unwind_Exception* exception, _Unwind_Context* context) {
  return __gxx_personality_v0(version, actions, kind, exception, context);
}
