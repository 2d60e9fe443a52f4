// <cache>/usage.json: what each user holds on this node, for the exporter, which may not look into users' stores. Root
// writes it at each `gc --all`; everyone may read it.
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "staging/cache/node.h"

namespace lockstep::cache {

/// Replaces the file atomically. Throws Error.
void write_usage_file(const NodeReport& node, const std::function<std::string(uid_t)>& name_of);

}  // namespace lockstep::cache
