#include "staging/transfer/source_watch.h"

#include <algorithm>

#include "common/error.h"
#include "common/units.h"

namespace lockstep::transfer {
namespace {

constexpr int kTicks = 20;  // of a patience

}  // namespace

SourceWatch::SourceWatch(std::chrono::milliseconds patience, std::function<void(const std::string&)> hung)
    : patience_(patience), hung_(std::move(hung)) {
  if (hung_) thread_ = std::thread([this] { watch(); });
}

SourceWatch::~SourceWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

SourceWatch& SourceWatch::none() {
  static SourceWatch nothing({}, {});
  return nothing;
}

std::chrono::milliseconds SourceWatch::patience(std::size_t nodes) {
  return std::chrono::minutes(5) + std::chrono::seconds(nodes);
}

SourceWatch::Call SourceWatch::call(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  return {*this, calls_.insert(calls_.end(), {path, ticks_})};
}

void SourceWatch::ended(std::list<Entry>::iterator entry) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !telling_; });
  calls_.erase(entry);
}

void SourceWatch::watch() {
  const auto tick = std::max(patience_ / kTicks, std::chrono::milliseconds(1));
  std::unique_lock lock(mutex_);
  for (;;) {
    if (changed_.wait_for(lock, tick, [&] { return ended_; })) return;
    ++ticks_;
    if (!calls_.empty() && ticks_ - calls_.front().since > kTicks) break;
  }
  const std::string why = fmt::format(
      "{}: the source has not answered for {}; is its file system well on this node?",
      calls_.front().path.string(), format_seconds(std::chrono::duration<double>(patience_).count()));
  telling_ = true;
  lock.unlock();
  hung_(why);
  lock.lock();
  telling_ = false;
  changed_.notify_all();
}

}  // namespace lockstep::transfer
