// Checks the sources of --stage where a job is submitted: they must be absolute, allowed by the administrator
// and, as far as the submitting machine can tell, readable. The nodes check again; an error here saves the
// user the wait in the queue.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::spank {

/// A source as an absolute path without "." and "..". A relative one starts from `folder`. Purely lexical.
std::string absolute_source(const std::string& source, const std::string& folder);

/// Throws Error if two sources (absolute) have the same entry name (common/leaf/source_name.h), or one is
/// outside the allowed prefixes; without prefixes all are allowed.
void check_names(const std::vector<std::string>& sources, const std::vector<std::string>& prefixes);

/// Throws Error if a source does not exist, cannot be read or is empty, or if one of its first 1,000
/// entries is neither a folder nor a regular file. Stops checking at `end`; the nodes check the rest.
void check_source(const std::string& source,
                  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max());

/// check_source() for one source after the other, until `timeout` has passed: with a thousand sources on a
/// slow file system, the nodes check the rest. `in_job`: leaves a source that does not exist to the nodes, because an
/// earlier step of the job may have staged it.
void check_sources(const std::vector<std::string>& sources, std::chrono::milliseconds timeout,
                   bool in_job = false);

}  // namespace lockstep::spank
