// Puts sources into this node's cache. An existing copy is verified and reused. Otherwise the
// source is copied in parallel and hashed on the way, the hashes are compared with the pack's index if it has
// one, and the copy is published as a whole or not at all. Two processes that want the same source copy it
// once.
//
// Threads: several threads and processes may call put() at the same time, also for the same cache. It starts
// its own threads and has joined them when it returns.
#pragma once

#include <string>
#include <vector>

#include "staging/transfer/put_options.h"

namespace lockstep::transfer {

/// Puts every source, in order: a folder, a file, or a pattern of files ("a-{00..31}.tar", "a-*.tar"). Throws
/// Error for the first that cannot be put, with source, shard and reason. Incomplete copies are never
/// visible.
std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options);

}  // namespace lockstep::transfer
