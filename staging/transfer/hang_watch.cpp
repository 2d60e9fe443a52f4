#include "staging/transfer/hang_watch.h"

#include <algorithm>

#include "common/error.h"
#include "common/units.h"

namespace lockstep::transfer {
namespace {

constexpr int kTicks = 20;  // of a patience

// What is written out waits for what all others have left to be written to that disk, too: a fifth of the
// memory, by Linux's defaults. Of 512 GiB at 200 MB/s that is nine minutes, on a disk that is well.
constexpr int kWriteOut = 6;  // patiences

}  // namespace

HangWatch::HangWatch(std::chrono::milliseconds patience, Hung hung, std::string disk)
    : patience_(patience), hung_(std::move(hung)), disk_(std::move(disk)) {
  if (hung_) thread_ = std::thread([this] { watch(); });
}

HangWatch::~HangWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

HangWatch& HangWatch::none() {
  static HangWatch nothing({}, {});
  return nothing;
}

std::chrono::milliseconds HangWatch::patience(std::size_t nodes) {
  return std::chrono::minutes(5) + std::chrono::seconds(nodes);
}

HangWatch::Call HangWatch::call(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  return {*this, calls_.insert(calls_.end(), {path, ticks_, 1})};
}

HangWatch::Call HangWatch::disk_call(bool writes_out) {
  const std::lock_guard lock(mutex_);
  return {*this, calls_.insert(calls_.end(), {{}, ticks_, writes_out ? kWriteOut : 1})};
}

// The others go on: one may hold a lock that `hung` needs.
void HangWatch::ended(std::list<Entry>::iterator entry) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !telling_ || entry != hangs_; });
  calls_.erase(entry);
}

void HangWatch::wait_for_telling() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !telling_; });
}

void HangWatch::watch() {
  const auto tick = std::max(patience_ / kTicks, std::chrono::milliseconds(1));
  std::unique_lock lock(mutex_);
  for (;;) {
    if (changed_.wait_for(lock, tick, [&] { return ended_; })) return;
    ++ticks_;
    hangs_ = std::find_if(calls_.begin(), calls_.end(),
                          [&](const Entry& call) { return ticks_ - call.since > kTicks * call.patiences; });
    if (hangs_ != calls_.end()) break;
  }
  const double waited = std::chrono::duration<double>(patience_).count() * hangs_->patiences;
  const std::string patience = format_seconds(waited);
  const std::filesystem::path path = hangs_->path;
  const Where where = path.empty() ? Where::disk : Where::source;
  const std::string why =
      where == Where::disk
          ? fmt::format("{} has not answered for {}; is it well?", disk_, patience)
          : fmt::format("{}: the source has not answered for {}; is its file system well on this node?",
                        path.string(), patience);
  telling_ = true;
  lock.unlock();
  hung_(where, why);
  lock.lock();
  telling_ = false;
  changed_.notify_all();
}

}  // namespace lockstep::transfer
