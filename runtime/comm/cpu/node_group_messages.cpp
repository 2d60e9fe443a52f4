// The messages of NodeGroup's exchange between the ranks of a node, in shared memory.
#include <cstring>

#include "common/error.h"
#include "runtime/comm/cpu/node_group.h"
#include "runtime/comm/failure.h"

namespace lockstep::comm::cpu {
namespace {

// The messages of a rank in shared memory: their number, for each its receiver, its place and its size, and their bytes.
struct StagedMessage {
  std::int32_t receiver = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

std::size_t NodeGroup::staged_bytes_of(const std::vector<PeerMessage>& sends) {
  if (sends.empty()) return 0;
  std::size_t bytes = sizeof(std::uint64_t) + sends.size() * sizeof(StagedMessage);
  for (const PeerMessage& send : sends) bytes += send.bytes;
  return bytes;
}

void NodeGroup::stage_messages(const Task& task) {
  auto* const memory = static_cast<std::byte*>(task.staging.get());
  const std::uint64_t count = task.sends.size();
  std::memcpy(memory, &count, sizeof count);
  std::size_t entry = sizeof count;
  std::size_t offset = entry + count * sizeof(StagedMessage);
  for (const PeerMessage& send : task.sends) {
    const StagedMessage staged{.receiver = send.peer, .offset = offset, .bytes = send.bytes};
    std::memcpy(memory + entry, &staged, sizeof staged);
    if (send.bytes > 0) std::memcpy(memory + offset, send.data, send.bytes);
    entry += sizeof staged;
    offset += send.bytes;
  }
}

// Copies this rank's messages from the memory of the senders.
void NodeGroup::take_messages(const Task& task) const {
  for (const PeerMessage& receive : task.receives) {
    const std::byte* const memory = task.views[static_cast<std::size_t>(receive.peer)];
    std::uint64_t count = 0;
    if (memory != nullptr) std::memcpy(&count, memory, sizeof count);
    StagedMessage staged;
    bool found = false;
    for (std::uint64_t i = 0; i < count && !found; ++i) {
      std::memcpy(&staged, memory + sizeof count + i * sizeof staged, sizeof staged);
      found = staged.receiver == place_.rank && staged.bytes == receive.bytes;
    }
    if (!found) {
      end_job_once(fmt::format("{}: rank {} expects {} bytes of rank {}, which does not send them",
                               task.operation->name(), place_.rank, receive.bytes, receive.peer));
    }
    if (staged.bytes > 0) std::memcpy(receive.data, memory + staged.offset, staged.bytes);
  }
}

}  // namespace lockstep::comm::cpu
