#include "staging/transfer/heartbeat.h"

#include <sys/stat.h>

#include <condition_variable>
#include <mutex>

namespace lockstep::transfer {

Heartbeat::Heartbeat(int fd, std::chrono::milliseconds call_timeout, std::chrono::milliseconds beat)
    : calls_(PendingCalls::of_this_process()),
      thread_([this, fd, beat, call_timeout](const std::stop_token& stop) {
        const int looks = static_cast<int>(call_timeout / beat);
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        while (!stop.stop_requested()) {
          if (!calls_.look(looks)) ::futimens(fd, nullptr);
          ended.wait_for(lock, stop, beat, [] { return false; });
        }
      }) {
}

}  // namespace lockstep::transfer
