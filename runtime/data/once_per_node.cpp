#include "runtime/data/once_per_node.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "common/error.h"
#include "runtime/comm/shm/segment.h"

namespace lockstep::data {
namespace {

// Of each rank: what is used, what comes next, and one for a rank that lags behind.
constexpr std::size_t kKept = 3;

enum class State : std::uint8_t { empty, making, made, failed };

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
  pthread_cond_t changed = {};
  std::uint64_t stamp = 0;

  Board() {
    pthread_mutexattr_t of_mutex;
    pthread_mutexattr_init(&of_mutex);
    pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&mutex, &of_mutex);
    pthread_mutexattr_destroy(&of_mutex);
    pthread_condattr_t of_changed;
    pthread_condattr_init(&of_changed);
    pthread_condattr_setpshared(&of_changed, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&changed, &of_changed);
    pthread_condattr_destroy(&of_changed);
  }

  static constexpr std::size_t entries_at() {
    return (sizeof(Board) + alignof(Entry) - 1) / alignof(Entry) * alignof(Entry);
  }
  static std::size_t bytes(std::size_t ranks) { return entries_at() + ranks * kKept * sizeof(Entry); }
  Entry* entries() { return reinterpret_cast<Entry*>(reinterpret_cast<std::byte*>(this) + entries_at()); }
};

// Whoever changes an entry wakes those that may wait for it.
class OncePerNode::Lock {
 public:
  explicit Lock(Board& board) : board_(board) { pthread_mutex_lock(&board_.mutex); }
  ~Lock() { pthread_mutex_unlock(&board_.mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void wait() { pthread_cond_wait(&board_.changed, &board_.mutex); }
  void wake_all() { pthread_cond_broadcast(&board_.changed); }
  void unlock() { pthread_mutex_unlock(&board_.mutex); }
  void lock_again() { pthread_mutex_lock(&board_.mutex); }

 private:
  Board& board_;
};

// A claimed entry, of which others will hear how it ended, whatever happens here.
class OncePerNode::Making {
 public:
  Making(Board& board, Entry& entry) : board_(board), entry_(entry) {}
  ~Making() { end(State::empty); }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  void end(State state) {
    if (ended_) return;
    ended_ = true;
    Lock lock(board_);
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
  bool ended_ = false;
};

std::shared_ptr<OncePerNode> OncePerNode::of_node(comm::Communicator& communicator) {
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
  return std::shared_ptr<OncePerNode>(new OncePerNode(std::move(memory), place));
}

OncePerNode::OncePerNode(std::shared_ptr<void> memory, const comm::Place& place)
    : memory_(std::move(memory)),
      board_(static_cast<Board*>(memory_.get())),
      local_rank_(place.local_rank),
      local_size_(place.local_size),
      results_(kKept) {
}

OncePerNode::~OncePerNode() {
  Lock lock(*board_);
  for (std::size_t own = 0; own < kKept; ++own) {
    while (own_entry(own).readers > 0) lock.wait();
    own_entry(own).state = State::empty;
  }
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
  --entry.readers;
  lock.wake_all();
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
    Lock lock(*board_);
    Entry* found = find(key);
    while (found != nullptr && found->state == State::making) {
      lock.wait();
      found = find(key);
    }
    if (found != nullptr && found->state == State::failed) {
      if (found->wrong_call) throw UsageError(found->error);
      throw Error(found->error);
    }
    if (found != nullptr) {
      if (auto bytes = copy(lock, *found)) return bytes;
    } else {
      own = claim(key);
    }
  }
  ++made_;
  if (!own) {
    make();
    return std::nullopt;
  }
  Making making(*board_, own_entry(*own));
  try {
    const Bytes bytes = make();
    try {
      publish(*own, bytes);
      making.end(State::made);
    } catch (const Error&) {  // no memory to share: each rank makes its own
    }
  } catch (const UsageError& error) {
    making.fail(error.what(), true);
    throw;
  } catch (const std::exception& error) {
    making.fail(error.what(), false);
    throw;
  }
  return std::nullopt;
}

}  // namespace lockstep::data
