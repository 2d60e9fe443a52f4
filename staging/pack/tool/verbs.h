// The verbs of lockstep-pack that write packs, and what they share with those that read (main.cpp).
//
// Threads: main's thread.
#pragma once

#include <string>
#include <vector>

#include "common/tool.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {

/// create, convert and index
void add_write_verbs(Tool& tool);

/// --leave-out, of the verbs that read data.
void add_leave_out(CLI::App& verb, OpenOptions& options);

/// "; NOTE; NOTE" for the end of a line about a pack.
std::string joined_notes(const std::vector<std::string>& notes);

}  // namespace lockstep::pack
