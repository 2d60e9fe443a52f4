// Tries an operation at a source again if its file system cannot be reached for a moment: a server that restarts, or a
// handle that has become stale. Five times, after 1, 2, 4, 8 and 16 seconds.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <type_traits>

#include "common/error.h"

namespace lockstep::transfer {

/// The pause before the first retry; each further one is twice as long.
inline constexpr std::chrono::milliseconds kSourcePause{1000};

/// All tries have failed.
class SourceUnreachable : public Error {
 public:
  using Error::Error;
};

/// Calls `work` until it returns or throws something that a retry does not change; before each retry, waits and calls
/// `before_next`. After the last one throws SourceUnreachable, with the last message and how often it was tried.
void retry_source(std::chrono::milliseconds pause, const std::function<void()>& work,
                  const std::function<void()>& before_next);

/// The same, for work with a result.
template <typename Work>
std::invoke_result_t<Work> retry_source(std::chrono::milliseconds pause, const Work& work) {
  if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
    retry_source(pause, std::function<void()>(std::cref(work)), {});
  } else {
    std::optional<std::invoke_result_t<Work>> result;
    retry_source(pause, [&] { result.emplace(work()); }, {});
    return *std::move(result);
  }
}

}  // namespace lockstep::transfer
