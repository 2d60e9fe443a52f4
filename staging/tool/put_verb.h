// The verb put of lockstep-stage.
//
// Threads: main's thread.
#pragma once

#include "common/tool.h"

namespace lockstep::transfer {

void add_put_verb(Tool& tool);

}  // namespace lockstep::transfer
