// The sources of --stage where a job is submitted: absolute, inside what the administrator allows, and, as
// far as it can be seen from there, readable. The nodes check again; this saves a user the wait in the queue.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

namespace lockstep::spank {

/// A source as an absolute path without "." and "..", seen from `folder`. Purely lexical.
std::string absolute_source(const std::string& source, const std::string& folder);

/// The name under which a source is found in $LOCKSTEP_DATA: its last name; of a pattern the name of its
/// folder.
std::string entry_name(const std::string& source);

/// True for a source with *, ?, [ or { in its last name: expanded on the node.
bool is_pattern(const std::string& source);

/// Throws Refusal where two sources (absolute) have the same entry name or one lies outside the allowed
/// prefixes; no prefixes allow everything.
void check_names(const std::vector<std::string>& sources, const std::vector<std::string>& prefixes);

/// Throws Refusal where this process's user can see that a source does not exist, cannot be read or is empty.
/// What it is made of, the nodes find out.
void check_source(const std::string& source);

}  // namespace lockstep::spank
