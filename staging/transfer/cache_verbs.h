// The verbs of lockstep-stage that look after a node's cache.
//
// Threads: main's thread.
#pragma once

#include "common/tool.h"

namespace lockstep::transfer {

void add_cache_verbs(Tool& tool);

}  // namespace lockstep::transfer
