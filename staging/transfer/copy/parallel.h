// The same work on items 0 to n - 1, several at a time.
//
// Threads: the call starts its own threads and has joined them when it returns.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::transfer {

/// Calls work(i) for every i below `count`, on `threads` threads. The first exception stops items not yet
/// begun and is thrown again here. `stop` inside `work` says that another item failed, for work that can end
/// early.
void parallel_for(std::size_t count, int threads,
                  const std::function<void(std::size_t i, const std::function<bool()>& stop)>& work);

}  // namespace lockstep::transfer
