#include "runtime/comm/control/activity.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "common/clock.h"

namespace lockstep::comm {
namespace {

// A name in an array, so that an operation needs no allocation.
class TruncatedName {
 public:
  void set(std::string_view text) {
    length_ = std::min(text.size(), kMaxLength);
    std::memcpy(text_.data(), text.data(), length_);
  }
  std::string_view view() const { return {text_.data(), length_}; }

 private:
  static constexpr std::size_t kMaxLength = 160;
  std::size_t length_ = 0;
  std::array<char, kMaxLength> text_{};
};

struct LoggedOperation {
  std::uint64_t number = 0;
  std::uint64_t asked_ns = 0;
  bool began = false;
  bool ended = false;
  TruncatedName name;
};

// The operations from the oldest that has not ended to the newest, in a ring that grows when it is full. Their numbers
// are consecutive.
class OperationLog {
 public:
  std::uint64_t asked(std::string_view operation) {
    const std::uint64_t now = monotonic_ns();
    const std::scoped_lock lock(mutex_);
    if (size_ == ring_.size()) grow();
    LoggedOperation& entry = at(size_++);
    entry.number = ++asked_;
    entry.asked_ns = now;
    entry.began = false;
    entry.ended = false;
    entry.name.set(operation);
    return entry.number;
  }

  void began(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    if (LoggedOperation* entry = find(number)) entry->began = true;
  }

  void ended(std::uint64_t number) {
    const std::uint64_t now = monotonic_ns();
    const std::scoped_lock lock(mutex_);
    LoggedOperation* entry = find(number);
    if (entry == nullptr) return;
    entry->ended = true;
    ++ended_;
    last_ = entry->name;
    last_ns_ = now;
    while (size_ > 0 && at(0).ended) {
      head_ = (head_ + 1) % ring_.size();
      --size_;
    }
  }

  Activity look() {
    const std::scoped_lock lock(mutex_);
    Activity activity;
    activity.asked = asked_;
    activity.ended = ended_;
    activity.since_ns = last_ns_;
    activity.last_ended = last_.view();
    if (size_ > 0) {
      const LoggedOperation& entry = at(0);
      activity.oldest = entry.name.view();
      activity.oldest_number = entry.number;
      activity.oldest_began = entry.began;
      activity.since_ns = entry.asked_ns;
    }
    return activity;
  }

 private:
  LoggedOperation& at(std::size_t index) { return ring_[(head_ + index) % ring_.size()]; }

  // Null if it has ended and left the ring.
  LoggedOperation* find(std::uint64_t number) {
    const std::uint64_t oldest = asked_ + 1 - size_;
    return number < oldest ? nullptr : &at(number - oldest);
  }

  void grow() {
    std::vector<LoggedOperation> larger(ring_.size() * 2);
    for (std::size_t index = 0; index < size_; ++index) larger[index] = at(index);
    ring_ = std::move(larger);
    head_ = 0;
  }

  std::mutex mutex_;
  std::vector<LoggedOperation> ring_ = std::vector<LoggedOperation>(64);
  std::size_t head_ = 0;
  std::size_t size_ = 0;
  std::uint64_t asked_ = 0;
  std::uint64_t ended_ = 0;
  TruncatedName last_;
  std::uint64_t last_ns_ = 0;
};

// Never destroyed, because operations may end while the program exits.
OperationLog& log() {
  static auto* const instance = new OperationLog;
  return *instance;
}

std::atomic<int> waiting{0};

}  // namespace

std::uint64_t note_asked(std::string_view operation) {
  return log().asked(operation);
}

void note_began(std::uint64_t number) {
  log().began(number);
}

void note_ended(std::uint64_t number) {
  log().ended(number);
}

WaitingNote::WaitingNote() {
  waiting.fetch_add(1, std::memory_order_relaxed);
}

WaitingNote::~WaitingNote() {
  waiting.fetch_sub(1, std::memory_order_relaxed);
}

Activity current_activity() {
  Activity activity = log().look();
  activity.waiting = waiting.load(std::memory_order_relaxed) > 0;
  return activity;
}

}  // namespace lockstep::comm
