// The verbs of lockstep-pack. Each function adds one, with its options, to the command line.
//
// Threads: main's thread.
#pragma once

#include "common/tool.h"

namespace lockstep::pack {

void add_create_verb(Tool& tool);
void add_convert_verb(Tool& tool);
/// ls, cat, verify, stats, index
void add_look_verbs(Tool& tool);

}  // namespace lockstep::pack
