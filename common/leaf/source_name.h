// Parses the names of sources to stage. The plugin and lockstep-stage must parse them alike.
//
// Threads: safe from any.
#pragma once

#include <string>

namespace lockstep {

/// True for a source with *, ?, [ or { in its last name: expanded on the node.
bool is_pattern(const std::string& source);

/// The name of a source in $LOCKSTEP_DATA: the last name of its path, or, for a pattern, the name of the
/// folder that holds the files.
std::string entry_name(const std::string& source);

}  // namespace lockstep
