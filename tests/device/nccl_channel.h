// Shared memory through which the processes of a simulated NCCL communicator meet and exchange data.
//
// Threads: meet(), exchange() and pass() from one thread each at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::simulated {

class Channel {
 public:
  static constexpr int kMaxRanks = 8;

  /// `name`: the same on all ranks, and new. The file is in $SIMULATED_MEMORY, or /dev/shm. `cancelled`: all waits end when it is true.
  Channel(std::string name, int rank, int size, const std::atomic<bool>& cancelled);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Every rank's number, when all ranks have come; empty if cancelled.
  std::vector<long> meet(long mine);

  /// A description of a collective, which must be the same on all ranks.
  struct Request {
    int kind = 0;
    int type = 0;
    int op = 0;
    int root = 0;
    std::size_t bytes = 0;

    bool operator==(const Request&) const = default;
  };
  using Parts = std::vector<const std::byte*>;

  /// Gives `bytes` bytes of every rank, in parts: their offset, their size, and where each rank's are. Null: this rank
  /// has none. False if cancelled. Throws std::runtime_error if the ranks' requests differ.
  bool exchange(const Request& request, const std::byte* mine, std::size_t bytes,
                const std::function<void(std::size_t offset, std::size_t size, const Parts& parts)>& take);

  /// Bytes for another rank, or from it.
  struct Message {
    int peer = 0;
    bool received = false;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t passed = 0;
    bool ended = false;
  };

  /// Passes the messages, all at the same time; one to each rank and one from each. False if cancelled. Throws
  /// std::runtime_error if a sender gives another size.
  bool pass(std::vector<Message> messages);

 private:
  struct Rank;
  struct Mailbox;
  struct Segment;

  bool wait_for_all(std::atomic<long> Rank::*counter);
  bool pass_part(Message& message);

  std::string file_;
  int rank_;
  int size_;
  const std::atomic<bool>& cancelled_;
  Segment* segment_ = nullptr;
};

}  // namespace lockstep::simulated
