// Between the scheduler and the dispatch loop.
#pragma once
#include "internal.h"

namespace metalsim {
void run_group(Worker& w);
}
