#include "staging/transfer/heartbeat.h"

#include <sys/stat.h>

#include <condition_variable>

#include "common/thread.h"

namespace lockstep::transfer {

Heartbeat::Heartbeat(std::chrono::milliseconds call_timeout, std::chrono::milliseconds beat)
    : call_timeout_(call_timeout), beat_(beat), calls_(PendingCalls::of_this_process()) {
}

Heartbeat::Beating Heartbeat::touch(int fd) {
  const std::lock_guard lock(mutex_);
  files_.insert(fd);
  if (!thread_.joinable())
    thread_ = new_thread<std::jthread>([this](const std::stop_token& stop) { run(stop); });
  return {*this, fd};
}

void Heartbeat::stop_touching(int fd) {
  const std::lock_guard lock(mutex_);
  files_.erase(files_.find(fd));
}

void Heartbeat::run(const std::stop_token& stop) {
  const int checks = static_cast<int>(call_timeout_ / beat_);
  std::condition_variable_any ended;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (!calls_.look(checks)) {
      for (const int fd : files_) ::futimens(fd, nullptr);
    }
    ended.wait_for(lock, stop, beat_, [] { return false; });
  }
}

}  // namespace lockstep::transfer
