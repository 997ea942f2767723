// Where lanes stand in the program, so that lanes which parted can be told apart and put in order.
#pragma once
#include "internal.h"

namespace metalsim {

// Below 0 if lane a waits earlier in the program than lane b, 0 if both wait at the same call in the same passes of
// the same loops.
int compare_places(const Fiber& a, const Fiber& b);

}  // namespace metalsim
