// Compares what this node calls with what the node before calls, by one message to the next node: if all
// neighbours agree, all nodes agree. A collective that is not the same everywhere could hang on one rank and succeed
// on another. The first data for the next node travels in the same message, if it is short: over TCP a second message
// costs as much as the first one.
//
// Threads: one at a time.
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/comm/cpu/node_schedule.h"
#include "runtime/comm/cpu/operation_slots.h"

namespace lockstep::comm::cpu {

class RequestCheck {
 public:
  /// The maximum number of bytes of data in the message. Longer data is worth no copy.
  static constexpr std::size_t kMaxData = kMaxRiding;

  RequestCheck(MPI_Comm lane, int node, int nodes, const OperationRequest& request, std::string_view label);
  RequestCheck(const RequestCheck&) = delete;
  RequestCheck& operator=(const RequestCheck&) = delete;

  int next() const { return next_; }
  int before() const { return before_; }

  /// Sends the request to the next node of `lane`, once, after those of the operations before.
  void send(std::span<const std::byte> data = {});
  bool is_sent() const { return state_ != State::waiting; }

  /// Whether the node before calls the same; false as long as its message is not there. Ends the job, with a line
  /// that names both requests, if it calls something else.
  bool matched();
  /// Waits for it.
  void wait();

  /// The data that came with the message, after matched().
  std::byte* data() const { return received_.get() + kDataBegin; }

 private:
  enum class State : std::uint8_t {
    waiting,  // for the operations before
    sent,
    equal,    // to the request of the node before
    matched,  // and this node's message has left
  };
  struct Message {
    OperationRequest request;
    std::int32_t rank = 0;
    std::array<char, kLabelBytes> label{};
  };
  void compare() const;

  static constexpr std::size_t kDataBegin = (sizeof(Message) + 63) / 64 * 64;

  MPI_Comm lane_;
  int next_;
  int before_;
  Message mine_;
  std::unique_ptr<std::byte[]> sent_ = std::make_unique_for_overwrite<std::byte[]>(kDataBegin + kMaxData);
  std::unique_ptr<std::byte[]> received_ = std::make_unique_for_overwrite<std::byte[]>(kDataBegin + kMaxData);
  std::array<MPI_Request, 2> requests_{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  State state_ = State::waiting;
};

}  // namespace lockstep::comm::cpu
