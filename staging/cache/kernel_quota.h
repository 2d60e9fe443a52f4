// Which quotas the file system of a cache enforces itself. Lockstep's own limits bind lockstep-stage only; these bind every
// program.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::cache {

/// "user quotas", "project quotas", both joined by " and ", or "" if it enforces none or does not tell (kernels before
/// 5.14).
std::string enforced_quotas(const std::filesystem::path& folder);

}  // namespace lockstep::cache
