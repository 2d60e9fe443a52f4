// Runs the same work on items 0 to n - 1, several at a time.
//
// Threads: the call starts its own threads and has joined them when it returns.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::transfer {

inline constexpr int kManyAtOnce = 32;  ///< a network file system answers many questions in the time of one

/// Calls work(i) for every i below `count`, on `threads` threads. After the first exception no more items are begun, and it is
/// thrown again here. If a thread cannot be started (a limit on processes), `cannot_start` is called, which must end items that
/// wait for others; then that error is thrown.
void parallel_for(
    std::size_t count, int threads, const std::function<void(std::size_t i)>& work,
    const std::function<void()>& cannot_start = [] {});

}  // namespace lockstep::transfer
