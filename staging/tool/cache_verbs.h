// The verbs of lockstep-stage that fill and manage a node's cache: put, ls, verify, status, gc, prefetch.
//
// Threads: main's thread.
#pragma once

#include <string>

#include "common/tool.h"
#include "staging/cache/node.h"

namespace lockstep::transfer {

void add_cache_verbs(Tool& tool);

inline constexpr int kMaxKeepSeconds = 1'000'000'000;  // for --keep

// The verbs that have a file of their own.
void add_gc_verb(Tool& tool);
void add_prefetch_verb(Tool& tool);
void add_put_verb(Tool& tool);
void add_status_verb(Tool& tool);

/// "2026-11-21 03:04:05", in the node's time zone; "-" for no time.
std::string format_time(cache::Time time);
/// Opens a store that exists. Throws Error naming the folder.
cache::Store existing_store(const std::string& folder, cache::StoreOptions options = {});

}  // namespace lockstep::transfer
