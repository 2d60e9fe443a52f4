#include "tests/device/nccl_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace lockstep::simulated {
namespace {

constexpr std::size_t kPart = std::size_t{256} << 10;
constexpr std::size_t kMessagePart = std::size_t{32} << 10;

void rest(int tries) {
  if (tries < 50) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

std::string folder() {
  const char* set = std::getenv("SIMULATED_MEMORY");
  return set == nullptr ? "/dev/shm" : set;
}

}  // namespace

struct Channel::Rank {
  std::atomic<long> meetings;
  std::atomic<long> exchanges;
  std::array<long, 2> numbers;  // of even and odd meetings
  Request request;
  alignas(64) std::array<std::byte, kPart> part;
};

// From one rank to another: a part of a message, full or empty.
struct Channel::Mailbox {
  std::atomic<bool> full;
  std::size_t bytes;  // of the whole message
  std::array<std::byte, kMessagePart> part;
};

struct Channel::Segment {
  std::array<Rank, kMaxRanks> ranks;
  std::array<std::array<Mailbox, kMaxRanks>, kMaxRanks> mailboxes;  // by sender and receiver
};

Channel::Channel(std::string name, int rank, int size, const std::atomic<bool>& cancelled)
    : file_(folder() + "/simulated-nccl-" + std::move(name)),
      rank_(rank),
      size_(size),
      cancelled_(cancelled) {
  const int file = ::open(file_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Segment)) != 0)
    throw std::runtime_error("no shared memory for " + file_);
  void* memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + file_);
  segment_ = static_cast<Segment*>(memory);  // the file's zeros are its initial state
}

Channel::~Channel() {
  ::unlink(file_.c_str());
  ::munmap(segment_, sizeof(Segment));
}

bool Channel::wait_for_all(std::atomic<long> Rank::*counter) {
  auto& ranks = segment_->ranks;
  const long mine = ++(ranks.at(static_cast<std::size_t>(rank_)).*counter);
  for (int rank = 0; rank < size_; ++rank) {
    for (int tries = 0; ranks.at(static_cast<std::size_t>(rank)).*counter < mine; ++tries) {
      if (cancelled_) return false;
      rest(tries);
    }
  }
  return true;
}

std::vector<long> Channel::meet(long mine) {
  auto& ranks = segment_->ranks;
  Rank& own = ranks.at(static_cast<std::size_t>(rank_));
  const auto parity = static_cast<std::size_t>(own.meetings % 2);
  own.numbers.at(parity) = mine;
  if (!wait_for_all(&Rank::meetings)) return {};
  ::unlink(file_.c_str());  // all ranks have mapped it
  std::vector<long> numbers;
  for (int rank = 0; rank < size_; ++rank) {
    numbers.push_back(ranks.at(static_cast<std::size_t>(rank)).numbers.at(parity));
  }
  return numbers;
}

bool Channel::exchange(const Request& request, const std::byte* mine, std::size_t bytes,
                       const std::function<void(std::size_t, std::size_t, const Parts&)>& take) {
  auto& ranks = segment_->ranks;
  Rank& own = ranks.at(static_cast<std::size_t>(rank_));
  own.request = request;
  Parts parts;
  for (int rank = 0; rank < size_; ++rank)
    parts.push_back(ranks.at(static_cast<std::size_t>(rank)).part.data());
  std::size_t offset = 0;
  do {
    const std::size_t size = std::min(kPart, bytes - offset);
    if (mine != nullptr && size > 0) std::memcpy(own.part.data(), mine + offset, size);
    if (!wait_for_all(&Rank::exchanges)) return false;
    for (int rank = 0; rank < size_; ++rank) {
      if (!(ranks.at(static_cast<std::size_t>(rank)).request == request)) {
        throw std::runtime_error("rank " + std::to_string(rank) +
                                 " called another collective, or with another count");
      }
    }
    if (size > 0) take(offset, size, parts);
    if (!wait_for_all(&Rank::exchanges)) return false;
    offset += size;
  } while (offset < bytes);
  return true;
}

// Whether there was a part to pass.
bool Channel::pass_part(Message& message) {
  const int sender = message.received ? message.peer : rank_;
  const int receiver = message.received ? rank_ : message.peer;
  Mailbox& mailbox =
      segment_->mailboxes.at(static_cast<std::size_t>(sender)).at(static_cast<std::size_t>(receiver));
  if (message.ended || mailbox.full != message.received) return false;
  const std::size_t size = std::min(kMessagePart, message.bytes - message.passed);
  if (message.received) {
    if (mailbox.bytes != message.bytes)
      throw std::runtime_error("rank " + std::to_string(sender) + " sends " + std::to_string(mailbox.bytes) +
                               " bytes, not " + std::to_string(message.bytes));
    std::copy_n(mailbox.part.data(), size, message.data + message.passed);
  } else {
    mailbox.bytes = message.bytes;
    std::copy_n(message.data + message.passed, size, mailbox.part.data());
  }
  mailbox.full = !message.received;
  message.passed += size;
  message.ended = message.passed == message.bytes;
  return true;
}

bool Channel::pass(std::vector<Message> messages) {
  for (int tries = 0; !std::ranges::all_of(messages, &Message::ended);) {
    if (cancelled_) return false;
    bool moved = false;
    for (Message& message : messages) moved |= pass_part(message);
    tries = moved ? 0 : tries + 1;
    if (!moved) rest(tries);
  }
  return true;
}

}  // namespace lockstep::simulated
