#include "runtime/comm/cpu/inter_node.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::cpu {
namespace {

constexpr int kMeasureTag = 2;
constexpr int kMessageTag = 3;
constexpr std::size_t kPiece = std::size_t{1} << 30;  // of a message, because MPI counts in int

// The time in which two nodes send each other `bytes` in messages of `message_bytes`, in seconds; the best of a few.
double time_exchange(MPI_Comm lane, int other, std::size_t bytes, std::size_t message_bytes, int times) {
  std::vector<std::byte> sent(bytes);
  std::vector<std::byte> received(bytes);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < times; ++i) {
    const std::uint64_t start = monotonic_ns();
    std::vector<MPI_Request> requests;
    for (std::size_t begin = 0; begin < bytes; begin += message_bytes) {
      const auto size = static_cast<int>(std::min(message_bytes, bytes - begin));
      mpi::check(MPI_Irecv(received.data() + begin, size, MPI_BYTE, other, kMeasureTag, lane,
                           &requests.emplace_back()),
                 "MPI_Irecv");
      mpi::check(
          MPI_Isend(sent.data() + begin, size, MPI_BYTE, other, kMeasureTag, lane, &requests.emplace_back()),
          "MPI_Isend");
    }
    // Without naps, which a long message would wait for.
    mpi::check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
               "MPI_Waitall");
    best = std::min(best, seconds_between(start, monotonic_ns()));
  }
  return best;
}

// Measures messages between the first two nodes. All ranks get the same numbers.
NetworkCost measure_network(MPI_Comm world, MPI_Comm lane, const RankInfo& place) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  // Over TCP, MPI sends such a message at once; for a longer one it first asks the receiver. Other networks move long
  // messages without the processor.
  constexpr std::size_t kEager = 60'000;
  NetworkCost cost;
  if (place.local_rank == 0 && place.node < 2) {
    const int other = 1 - place.node;
    // The fastest way to exchange `bytes`: the length of its messages, and the seconds.
    const auto fastest = [&](std::size_t bytes) {
      time_exchange(lane, other, bytes, bytes, 3);  // TCP begins slowly
      const double eager = time_exchange(lane, other, bytes, kEager, 5);
      const double whole = time_exchange(lane, other, bytes, bytes, 5);
      // Messages that wait for the receiver are much slower at times, such as before TCP's windows have grown.
      constexpr double kClearly = 0.8;
      return whole < kClearly * eager ? std::pair(kLongestMessage, whole) : std::pair(kEager, eager);
    };
    cost.latency = time_exchange(lane, other, 8, 8, 10);
    cost.short_message_bytes = fastest(kShortOperation / 2).first;
    const auto [bytes, seconds] = fastest(kLarge);
    cost.message_bytes = bytes;
    cost.per_byte = std::max(seconds - cost.latency, 0.0) / static_cast<double>(kLarge);
  }
  mpi::check(MPI_Bcast(&cost, sizeof cost, MPI_BYTE, 0, world), "MPI_Bcast");
  return cost;
}

// The bytes of a rank's part as an int.
int bytes_of_part(const Buffer& mine) {
  if (mine.bytes() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    fail("each rank's part must be smaller than 2 GiB: divide the data among several operations");
  }
  return static_cast<int>(mine.bytes());
}

}  // namespace

InterNode::InterNode(MPI_Comm world, const RankInfo& place) : world_(world), place_(place) {
  int most = 1;
  mpi::check(MPI_Allreduce(&place.local_size, &lanes_, 1, MPI_INT, MPI_MIN, world), "MPI_Allreduce");
  mpi::check(MPI_Allreduce(&place.local_size, &most, 1, MPI_INT, MPI_MAX, world), "MPI_Allreduce");
  sums_on_nodes_ = most > 1;
  if (most == lanes_) {
    const int mine = place.node * lanes_ + place.local_rank;
    std::vector<int> all(static_cast<std::size_t>(place.size));
    mpi::check(MPI_Allgather(&mine, 1, MPI_INT, all.data(), 1, MPI_INT, world), "MPI_Allgather");
    ranks_.resize(all.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) ranks_[static_cast<std::size_t>(all[rank])] = rank;
  }
  // Ranks beyond the lanes exchange nothing.
  const int color = place.local_rank < lanes_ ? place.local_rank : MPI_UNDEFINED;
  mpi::check(MPI_Comm_split(world, color, place.node, &lane_), "MPI_Comm_split");
  const NetworkCost cost = measure_network(world, lane_, place);
  exchange_.emplace(lane_, place.node, place.nodes, cost);
}

InterNode::~InterNode() {
  if (lane_ != MPI_COMM_NULL) MPI_Comm_free(&lane_);
}

// The first rank of each node compares the requests.
std::shared_ptr<NodeOperation> InterNode::posted(std::function<void(std::vector<MPI_Request>&)> post) const {
  auto operation = std::make_shared<NodeOperation>();
  operation->post = std::move(post);
  operation->compares = place_.local_rank == 0;
  return operation;
}

std::shared_ptr<NodeOperation> InterNode::broadcast(Buffer buffer, int root, MPI_Comm comm) {
  return posted([comm, buffer, root](std::vector<MPI_Request>& requests) {
    auto* data = static_cast<std::byte*>(buffer.data);
    for (std::size_t begin = 0; begin < buffer.bytes(); begin += kPiece) {
      const auto bytes = static_cast<int>(std::min(kPiece, buffer.bytes() - begin));
      mpi::check(MPI_Ibcast(data + begin, bytes, MPI_BYTE, root, comm, &requests.emplace_back()),
                 "MPI_Ibcast");
    }
  });
}

std::shared_ptr<NodeOperation> InterNode::all_gather(Buffer mine, void* all) const {
  const int bytes = bytes_of_part(mine);
  const std::byte* part = static_cast<std::byte*>(all) + mine.bytes() * static_cast<std::size_t>(place_.rank);
  return posted([=, this](std::vector<MPI_Request>& requests) {
    mpi::check(MPI_Iallgather(mine.data == part ? MPI_IN_PLACE : mine.data, bytes, MPI_BYTE, all, bytes,
                              MPI_BYTE, world_, &requests.emplace_back()),
               "MPI_Iallgather");
  });
}

// MPI does not promise an order of summation, so each rank collects its part of all ranks and reduces it in rank order.
std::shared_ptr<NodeOperation> InterNode::reduce_scatter(void* all, Buffer mine, ScaledOp scaled) {
  const int bytes = bytes_of_part(mine);
  const auto part = [all, bytes](int rank) {
    return static_cast<std::byte*>(all) + static_cast<std::size_t>(rank) * static_cast<std::size_t>(bytes);
  };
  const auto received = [this, bytes](int rank) {
    return scratch_.data() + static_cast<std::size_t>(rank) * static_cast<std::size_t>(bytes);
  };
  auto operation = posted([=, this](std::vector<MPI_Request>& requests) {
    scratch_.resize(std::max(scratch_.size(), mine.bytes() * static_cast<std::size_t>(place_.size)));
    // The k-th message goes to the k-th rank after this one, so that not all ranks send to the same one first.
    for (int k = 1; k < place_.size; ++k) {
      const int from = (place_.rank - k + place_.size) % place_.size;
      mpi::check(MPI_Irecv(received(from), bytes, MPI_BYTE, from, 0, world_, &requests.emplace_back()),
                 "MPI_Irecv");
    }
    for (int k = 1; k < place_.size; ++k) {
      const int to = (place_.rank + k) % place_.size;
      mpi::check(MPI_Isend(part(to), bytes, MPI_BYTE, to, 0, world_, &requests.emplace_back()), "MPI_Isend");
    }
  });
  operation->finish = [=, this] {
    std::vector<const void*> inputs;
    for (int rank = 0; rank < place_.size; ++rank) {
      inputs.push_back(rank == place_.rank ? part(rank) : received(rank));
    }
    reduce(inputs, mine.data, mine.count, mine.type, scaled);
  };
  return operation;
}

std::pair<int, int> InterNode::position_of(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), static_cast<std::size_t>(rank)) - ranks_.begin();
  return {static_cast<int>(found) / lanes_, static_cast<int>(found) % lanes_};
}

std::shared_ptr<NodeOperation> InterNode::nothing() const {
  return posted([](std::vector<MPI_Request>&) {});
}

std::shared_ptr<NodeOperation> InterNode::exchange(const std::vector<PeerMessage>& sends,
                                                   const std::vector<PeerMessage>& receives) const {
  return posted([sends, receives, world = world_](std::vector<MPI_Request>& requests) {
    const auto in_pieces = [](const PeerMessage& message, const auto& post) {
      for (std::size_t begin = 0; begin < message.bytes; begin += kPiece) {
        post(static_cast<std::byte*>(message.data) + begin,
             static_cast<int>(std::min(kPiece, message.bytes - begin)));
      }
    };
    for (const PeerMessage& message : receives) {
      in_pieces(message, [&](std::byte* data, int bytes) {
        mpi::check(
            MPI_Irecv(data, bytes, MPI_BYTE, message.peer, kMessageTag, world, &requests.emplace_back()),
            "MPI_Irecv");
      });
    }
    for (const PeerMessage& message : sends) {
      in_pieces(message, [&](const std::byte* data, int bytes) {
        mpi::check(
            MPI_Isend(data, bytes, MPI_BYTE, message.peer, kMessageTag, world, &requests.emplace_back()),
            "MPI_Isend");
      });
    }
  });
}

std::shared_ptr<NodeOperation> InterNode::barrier() const {
  return posted([world = world_](std::vector<MPI_Request>& requests) {
    mpi::check(MPI_Ibarrier(world, &requests.emplace_back()), "MPI_Ibarrier");
  });
}

}  // namespace lockstep::comm::cpu
