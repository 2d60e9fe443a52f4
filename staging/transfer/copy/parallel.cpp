#include "staging/transfer/copy/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "common/thread.h"

namespace lockstep::transfer {

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work,
                  const std::function<void()>& cannot_start) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::exception_ptr error;
  const auto note_error = [&] {
    const std::lock_guard lock(mutex);
    if (!error) error = std::current_exception();
    failed = true;
  };
  {
    std::vector<std::jthread> workers;
    const std::size_t wanted = std::min<std::size_t>(count, static_cast<std::size_t>(std::max(1, threads)));
    try {
      for (std::size_t t = 0; t < wanted; ++t) {
        workers.push_back(new_thread<std::jthread>([&] {
          for (std::size_t i = next++; i < count && !failed; i = next++) {
            try {
              work(i);
            } catch (...) {
              note_error();
            }
          }
        }));
      }
    } catch (...) {
      note_error();
      cannot_start();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::transfer
