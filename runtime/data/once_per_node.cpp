#include "runtime/data/once_per_node.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "runtime/comm/shm/segment.h"

namespace lockstep::data {
namespace {

// Of each rank: what is used, what comes next, and one for a rank that lags behind.
constexpr std::size_t kKept = 3;

// unshared: it was made, but there was no memory to put it in; nobody need wait for another who tries.
enum class State : std::uint8_t { empty, making, made, unshared, failed };

}  // namespace

// A result, or the work on it. Its rank alone makes it; all read it.
struct OncePerNode::Entry {
  State state = State::empty;
  bool wrong_call = false;  // what was thrown is a UsageError
  Key key;
  std::uint64_t attempt = 0;
  std::uint64_t stamp = 0;    // the greater, the later
  std::uint32_t readers = 0;  // that copy it
  std::uint64_t bytes = 0;
  comm::shm::SegmentName segment;
  char error[1024] = {};
};

// The entries of the node's ranks lie behind it.
struct OncePerNode::Board {
  pthread_mutex_t mutex = {};
  std::atomic<std::uint32_t> changes = 0;  // those that wait sleep on it
  std::uint64_t stamp = 0;

  // Robust: a rank that is killed while it holds the mutex leaves it to the next.
  Board() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }

  static constexpr std::size_t entries_at() {
    return (sizeof(Board) + alignof(Entry) - 1) / alignof(Entry) * alignof(Entry);
  }
  static std::size_t bytes(std::size_t ranks) { return entries_at() + ranks * kKept * sizeof(Entry); }
  Entry* entries() { return reinterpret_cast<Entry*>(reinterpret_cast<std::byte*>(this) + entries_at()); }
};

// Whoever changes an entry wakes those that may wait for it. A rank may be stopped anywhere, with the lock
// too, so that nobody waits without an end: neither for the lock, nor (as with a condition variable) for
// having it again after having waited.
class OncePerNode::Lock {
 public:
  Lock(Board& board, std::chrono::nanoseconds most_wait)
      : board_(board),
        most_wait_ns_(static_cast<std::uint64_t>(most_wait.count())),
        end_ns_(monotonic_ns() + most_wait_ns_) {
    lock_again();
  }
  ~Lock() { unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool held() const { return held_; }
  void unlock() {
    if (std::exchange(held_, false)) pthread_mutex_unlock(&board_.mutex);
  }
  void lock_again() {
    const timespec end = time_of(monotonic_ns() + most_wait_ns_);
    const int error = pthread_mutex_clocklock(&board_.mutex, CLOCK_MONOTONIC, &end);
    if (error == EOWNERDEAD) pthread_mutex_consistent(&board_.mutex);
    held_ = error == 0 || error == EOWNERDEAD;
  }
  // Until something changes. False where that takes too long, counted from the lock's beginning.
  bool wait() {
    const std::uint32_t heard = board_.changes;
    unlock();
    const std::uint64_t now = monotonic_ns();
    if (now >= end_ns_) return false;
    const timespec left = time_of(end_ns_ - now);
    ::syscall(SYS_futex, &board_.changes, FUTEX_WAIT, heard, &left, nullptr, 0);
    lock_again();
    return held_;
  }
  void wake_all() {
    ++board_.changes;
    ::syscall(SYS_futex, &board_.changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  static timespec time_of(std::uint64_t ns) {
    return {.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
            .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  }

  Board& board_;
  std::uint64_t most_wait_ns_;
  std::uint64_t end_ns_;
  bool held_ = false;
};

// A claimed entry, of which others will hear how it ended, whatever happens here.
class OncePerNode::Making {
 public:
  Making(Board& board, Entry& entry, std::chrono::nanoseconds most_wait)
      : board_(board), entry_(entry), most_wait_(most_wait) {}
  ~Making() { end(State::empty); }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  void end(State state) {
    if (ended_) return;
    ended_ = true;
    Lock lock(board_, most_wait_);
    if (!lock.held()) return;  // others stop waiting by themselves
    entry_.state = state;
    lock.wake_all();
  }
  void fail(std::string_view error, bool wrong_call) {
    entry_.wrong_call = wrong_call;
    entry_.error[error.copy(entry_.error, sizeof entry_.error - 1)] = 0;
    end(State::failed);
  }

 private:
  Board& board_;
  Entry& entry_;
  std::chrono::nanoseconds most_wait_;
  bool ended_ = false;
};

std::shared_ptr<OncePerNode> OncePerNode::of_node(comm::Communicator& communicator,
                                                  std::chrono::milliseconds most_wait) {
  // Where the board is, if the node's first rank could make one.
  struct Card {
    comm::shm::SegmentName segment;
    std::int64_t node = -1;
  };
  const comm::Place& place = communicator.place();
  const auto ranks = static_cast<std::size_t>(place.local_size);
  std::shared_ptr<void> memory;
  Card mine{.segment = {}, .node = place.node};
  if (place.local_rank == 0 && place.local_size > 1) {
    try {
      memory = comm::shm::allocate(Board::bytes(ranks));
      auto* const board = new (memory.get()) Board;
      for (std::size_t i = 0; i < ranks * kKept; ++i) new (&board->entries()[i]) Entry;
      mine.segment = comm::shm::find(memory.get(), Board::bytes(ranks))->segment;
    } catch (const Error&) {  // no memory to share: its card says so
      memory = nullptr;
    }
  }
  std::vector<Card> cards(static_cast<std::size_t>(place.size));
  communicator.all_gather({&mine, sizeof mine, comm::DataType::u8}, cards.data(), "where the plan is shared")
      ->wait();
  if (place.local_size == 1) return nullptr;
  const auto first = std::find_if(cards.begin(), cards.end(), [&](const Card& card) {
    return card.node == place.node && card.segment.descriptor >= 0;
  });
  if (first == cards.end()) return nullptr;
  try {
    if (!memory) memory = comm::shm::map(first->segment);
  } catch (const Error&) {
    return nullptr;
  }
  return std::shared_ptr<OncePerNode>(new OncePerNode(std::move(memory), place, most_wait));
}

OncePerNode::OncePerNode(std::shared_ptr<void> memory, const comm::Place& place,
                         std::chrono::nanoseconds most_wait)
    : memory_(std::move(memory)),
      board_(static_cast<Board*>(memory_.get())),
      local_rank_(place.local_rank),
      local_size_(place.local_size),
      most_wait_(most_wait),
      results_(kKept) {
}

// Those that copy a result now need not be waited for: they have mapped its memory, which then stays theirs,
// or find it gone.
OncePerNode::~OncePerNode() {
  Lock lock(*board_, most_wait_);
  if (!lock.held()) return;
  for (std::size_t own = 0; own < kKept; ++own) own_entry(own).state = State::empty;
}

OncePerNode::Entry& OncePerNode::own_entry(std::size_t own) const {
  return board_->entries()[static_cast<std::size_t>(local_rank_) * kKept + own];
}

// Under the lock. Null: nobody has made it, or it failed when it was last tried.
OncePerNode::Entry* OncePerNode::find(const Key& key) const {
  Entry* const begin = board_->entries();
  Entry* const end = begin + static_cast<std::size_t>(local_size_) * kKept;
  Entry* const found = std::find_if(begin, end, [&](const Entry& entry) {
    return entry.state != State::empty && entry.key == key &&
           (entry.state != State::failed || entry.attempt == attempt_);
  });
  return found == end ? nullptr : found;
}

// Under the lock. The oldest of this rank's entries that nobody uses.
std::optional<std::size_t> OncePerNode::claim(const Key& key) {
  std::optional<std::size_t> oldest;
  for (std::size_t own = 0; own < kKept; ++own) {
    const Entry& entry = own_entry(own);
    if (entry.state == State::making || entry.readers > 0) continue;
    if (!oldest || entry.stamp < own_entry(*oldest).stamp) oldest = own;
  }
  if (!oldest) return std::nullopt;
  Entry& entry = own_entry(*oldest);
  entry.state = State::making;
  entry.key = key;
  entry.attempt = attempt_;
  entry.stamp = ++board_->stamp;
  return oldest;
}

// Its rank leaves the entry alone while there are readers. Nothing where its memory cannot be mapped.
std::optional<OncePerNode::Bytes> OncePerNode::copy(Lock& lock, Entry& entry) {
  ++entry.readers;
  const comm::shm::SegmentName segment = entry.segment;
  const std::uint64_t size = entry.bytes;
  lock.unlock();
  std::optional<Bytes> bytes;
  try {
    const auto memory = comm::shm::map(segment);
    const auto* const begin = static_cast<const std::byte*>(memory.get());
    bytes.emplace(begin, begin + size);
  } catch (const std::exception&) {
  }
  lock.lock_again();
  if (lock.held()) --entry.readers;
  return bytes;
}

// Memory is used again where it is large enough: a segment that goes makes the communicator look for those it
// knows once more.
void OncePerNode::publish(std::size_t own, const Bytes& bytes) {
  Entry& entry = own_entry(own);
  std::shared_ptr<void>& memory = results_[own];
  if (!memory || entry.segment.bytes < bytes.size()) {
    memory = nullptr;
    memory = comm::shm::allocate(bytes.size() + bytes.size() / 4);
    entry.segment = comm::shm::find(memory.get(), bytes.size())->segment;
  }
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  entry.bytes = bytes.size();
}

std::optional<OncePerNode::Bytes> OncePerNode::get(const Key& key, const std::function<Bytes()>& make) {
  std::optional<std::size_t> own;
  {
    Lock lock(*board_, most_wait_);
    bool in_time = lock.held();
    Entry* found = in_time ? find(key) : nullptr;
    while (found != nullptr && found->state == State::making) {
      in_time = lock.wait();
      found = in_time ? find(key) : nullptr;
    }
    if (found != nullptr && found->state == State::failed) {
      if (found->wrong_call) throw UsageError(found->error);
      throw Error(found->error);
    }
    if (found != nullptr && found->state == State::made) {
      if (auto bytes = copy(lock, *found)) return bytes;
    } else if (in_time && found == nullptr) {
      own = claim(key);
    }
  }
  ++made_;
  if (!own) {
    make();
    return std::nullopt;
  }
  Making making(*board_, own_entry(*own), most_wait_);
  try {
    const Bytes bytes = make();
    try {
      publish(*own, bytes);
      making.end(State::made);
    } catch (const Error&) {
      making.end(State::unshared);
    }
  } catch (const UsageError& error) {
    making.fail(error.what(), true);
    throw;
  } catch (const Error& error) {
    making.fail(error.what(), false);
    throw;
  }  // what else is thrown (no memory) is this rank's own matter, and the others try for themselves
  return std::nullopt;
}

}  // namespace lockstep::data
