// The sources of --stage where a job is submitted: absolute, inside what the administrator allows, and, as
// far as it can be seen from there, readable. The nodes check again; this saves a user the wait in the queue.
//
// Threads: safe from any.
#pragma once

#include <chrono>
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

/// Throws Refusal where this process's user can see that a source does not exist, cannot be read or is empty,
/// or that one of its first 1,000 entries is a link or no regular file. The nodes look at the rest, and at
/// what has not been looked at when `end` comes.
void check_source(const std::string& source,
                  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max());

/// The same of one after the other, until that much time has passed: of a thousand sources on a slow file
/// system the nodes check the rest.
void check_sources(const std::vector<std::string>& sources, std::chrono::milliseconds budget);

}  // namespace lockstep::spank
