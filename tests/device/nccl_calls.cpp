// The calls of NCCL between processes of one machine. A communicator that was made not to block is "in progress" after
// calls; a collective is launched on the caller's stream only when ncclCommGetAsyncError has said that it is no longer,
// so an event recorded before that does not cover it.
#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tests/device/nccl_channel.h"
#include "tests/device/nccl_reduce.h"
#include "tests/device/simulator.h"

// NCCL's own names.
// NOLINTBEGIN(readability-identifier-naming)

struct ncclComm {
  int rank = 0;
  int size = 1;
  int device = 0;
  bool blocking = true;
  std::string name;
  std::atomic<bool> cancelled{false};
  std::unique_ptr<lockstep::simulated::Channel> channel;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::string error;
  std::thread work;  // the start, the split or the end
  int splits = 0;
  bool finalized = false;
  lockstep::simulated::OperationPtr last;  // collectives run in the order of the calls

  // A collective that has not been launched on the caller's stream yet.
  struct Unlaunched {
    lockstep::simulated::Stream* stream = nullptr;
    lockstep::simulated::OperationPtr operation;
    lockstep::simulated::VectorClock clock;
    int polls = 0;
    bool denied = false;  // a test made NCCL say that it is launched
  };
  std::optional<Unlaunched> unlaunched;
  lockstep::simulated::Stream* launcher = nullptr;
};

namespace lockstep::simulated {
namespace {

thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<std::function<ncclResult_t()>> group;
thread_local ncclResult_t group_error = ncclSuccess;

// Of a group; all on one stream. They are passed at the same time.
struct Messages {
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Channel::Message> all;
};
thread_local Messages group_messages;

ncclResult_t fail(ncclResult_t result, std::string reason) {
  last_error = std::move(reason);
  return result;
}

void wait_until_cancelled(const ncclComm& comm) {
  while (!comm.cancelled) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// Runs `body` in the background if the communicator does not block.
ncclResult_t start(ncclComm* comm, std::function<void()> body) {
  if (comm->work.joinable()) comm->work.join();
  comm->state = ncclInProgress;
  comm->work = std::thread([comm, body = std::move(body)] {
    try {
      body();
      if (comm->state == ncclInProgress) comm->state = ncclSuccess;
    } catch (const std::exception& error) {
      comm->error = error.what();
      comm->state = ncclInvalidUsage;
    }
  });
  if (!comm->blocking) return ncclInProgress;
  comm->work.join();
  return comm->state == ncclSuccess ? ncclSuccess : fail(comm->state, comm->error);
}

// Throws if two ranks have the same device.
void meet_others(ncclComm& comm) {
  if (Simulator::get().due(Fault::setup)) wait_until_cancelled(comm);
  comm.channel = std::make_unique<Channel>(comm.name, comm.rank, comm.size, comm.cancelled);
  const std::vector<long> devices = comm.channel->meet(comm.device);
  for (std::size_t one = 0; one < devices.size(); ++one) {
    for (std::size_t other = one + 1; other < devices.size(); ++other) {
      if (devices[one] != devices[other]) continue;
      throw std::runtime_error(fmt::format(
          "Duplicate GPU detected : rank {} and rank {} both on CUDA device {}", one, other, devices[one]));
    }
  }
}

ncclComm* make_comm(int rank, int size, std::string name, const ncclConfig_t* config) {
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->size = size;
  comm->name = std::move(name);
  comm->device = Simulator::get().this_thread().device;
  comm->blocking = config == nullptr || config->blocking != 0;
  Simulator::get().use_context(comm->device);
  return comm;
}

void launch(ncclComm& comm) {
  Simulator::get().make_wait(*comm.unlaunched->stream, comm.unlaunched->operation, comm.unlaunched->clock);
  comm.unlaunched.reset();
}

ncclResult_t check_ready(ncclComm* comm) {
  if (comm->unlaunched && comm->unlaunched->denied) launch(*comm);
  if (Simulator::get().due(Fault::call)) return fail(ncclSystemError, "a fault that the test asked for");
  if (comm->unlaunched || comm->state == ncclInProgress) {
    return fail(ncclInvalidArgument, "the communicator was used before the previous call had ended");
  }
  return comm->state == ncclSuccess ? ncclSuccess : fail(comm->state, comm->error);
}

struct Collective {
  const char* name;
  ncclComm* comm;
  cudaStream_t stream;
  Channel::Request request;
  const void* send = nullptr;  // null: this rank gives nothing
  std::size_t send_bytes = 0;
  void* result = nullptr;  // null: this rank gets nothing
  std::size_t result_bytes = 0;
  std::function<void(std::size_t offset, std::size_t size, const Channel::Parts& parts, std::byte* result)>
      take;
};

// The work of a call on its stream.
struct Task {
  const char* name;
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<Range> ranges;
  std::function<void()> begin;
  std::function<void()> end;
};

void check_place(const Task& task, const Range& range, const Label& label) {
  const Block* block = Simulator::get().containing(range.begin);
  if (block != nullptr && block->device == task.comm->device) return;
  Simulator::get().note(
      [label] { return label.text() + " uses memory that is not of the communicator's device"; });
}

void run(const Task& task) {
  try {
    task.end();
  } catch (const std::exception& error) {
    Simulator::get().note(
        [text = fmt::format("{} on rank {}: {}", task.name, task.comm->rank, error.what())] { return text; });
    task.comm->error = error.what();
    task.comm->state = ncclInternalError;
  }
}

ncclResult_t queue(const Task& task) {
  Simulator& simulator = Simulator::get();
  ncclComm* comm = task.comm;
  if (const ncclResult_t ready = check_ready(comm); ready != ncclSuccess) return ready;
  Stream* stream = simulator.find(task.stream);
  if (stream == nullptr || stream->device != comm->device) {
    return fail(ncclInvalidArgument, "the stream is not of the communicator's device");
  }
  const Label label(task.name);
  for (const Range& range : task.ranges) check_place(task, range, label);
  std::function<void()> end = [task] { run(task); };
  if (simulator.due(Fault::absence)) end = [comm] { wait_until_cancelled(*comm); };
  const bool breaks = simulator.due(Fault::collective);
  if (breaks) {
    end = [comm] {
      comm->error = "a rank has ended";
      comm->state = ncclRemoteError;
      wait_until_cancelled(*comm);
    };
  }
  const int polls = comm->blocking || breaks || group_depth > 0 ? 0 : simulator.choose(4);
  if (comm->last) simulator.make_wait(*stream, comm->last, {});  // of another stream, perhaps
  if (polls == 0) {
    comm->last = simulator.queue(*stream, label, task.ranges, task.begin, end);
    return ncclSuccess;
  }
  // The launching thread's stream: it sees the caller's stream as it is now.
  if (comm->launcher == nullptr) comm->launcher = simulator.make_stream(comm->device, false);
  const OperationPtr marker = simulator.queue(*stream, label, {});
  simulator.make_wait(*comm->launcher, marker, stream->clock);
  comm->last = simulator.queue(*comm->launcher, label, task.ranges, task.begin, end);
  comm->unlaunched = {stream, comm->last, comm->launcher->clock, polls, simulator.drops(Wait::launch, label)};
  return ncclInProgress;
}

Task task_of(const Collective& call) {
  std::vector<Range> ranges;
  if (call.send != nullptr)
    ranges.push_back({static_cast<const std::byte*>(call.send), call.send_bytes, false});
  if (call.result != nullptr)
    ranges.push_back({static_cast<const std::byte*>(call.result), call.result_bytes, true});
  auto sent = std::make_shared<std::vector<std::byte>>();
  const auto begin = [call, sent] {
    if (call.send == nullptr) return;
    const std::byte* from = Simulator::get().reachable(call.send);
    sent->assign(from, from + call.send_bytes);
  };
  const auto end = [call, sent] {
    std::byte* result = call.result == nullptr ? nullptr : Simulator::get().reachable(call.result);
    call.comm->channel->exchange(call.request, sent->empty() ? nullptr : sent->data(), call.request.bytes,
                                 [&](std::size_t offset, std::size_t size, const Channel::Parts& parts) {
                                   if (result != nullptr) call.take(offset, size, parts, result);
                                 });
  };
  return {call.name, call.comm, call.stream, std::move(ranges), begin, end};
}

ncclResult_t submit(Collective call) {
  if (group_depth == 0) return queue(task_of(call));
  group.emplace_back([call = std::move(call)] { return queue(task_of(call)); });
  return ncclSuccess;
}

Task task_of(const Messages& messages) {
  std::vector<Range> ranges;
  for (const Channel::Message& message : messages.all)
    ranges.push_back({message.data, message.bytes, message.received});
  const auto end = [messages] {
    std::vector<Channel::Message> all = messages.all;
    for (Channel::Message& message : all) message.data = Simulator::get().reachable(message.data);
    messages.comm->channel->pass(std::move(all));
  };
  return {"ncclGroupEnd", messages.comm, messages.stream, std::move(ranges), nullptr, end};
}

// A call outside a group is a group.
ncclResult_t add_message(ncclComm* comm, cudaStream_t stream, const Channel::Message& message) {
  ncclGroupStart();
  if (Simulator::get().due(Fault::call)) {
    group_error = fail(ncclSystemError, "a fault that the test asked for");
  } else if (message.peer < 0 || message.peer >= comm->size) {
    group_error = fail(ncclInvalidArgument, "the peer does not exist");
  } else {
    group_messages.comm = comm;
    group_messages.stream = stream;
    group_messages.all.push_back(message);
  }
  const ncclResult_t error = group_error;
  const ncclResult_t ended = ncclGroupEnd();
  return error == ncclSuccess ? ended : error;
}

Reduction reduction_of(const ncclComm* comm, ncclRedOp_t op) {
  if (op == ncclAvg) return {ncclSum, true, 1.0 / comm->size};
  return {op, false, 1};
}

void end(ncclComm* comm) {
  while (!comm->cancelled && !Simulator::get().finished(comm->last)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (comm->channel && !comm->cancelled) comm->channel->meet(0);
  comm->finalized = true;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (Simulator::get().due(Fault::call)) return fail(ncclSystemError, "a fault that the test asked for");
  std::random_device random;
  const std::string name = fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
  *id = {};
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (size > Channel::kMaxRanks) return fail(ncclInvalidArgument, "the simulation has at most 8 ranks");
  if (Simulator::get().due(Fault::call)) return fail(ncclSystemError, "a fault that the test asked for");
  *comm = make_comm(rank, size, id.internal, config);
  return start(*comm, [made = *comm] { meet_others(*made); });
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  if (const ncclResult_t ready = check_ready(parent); ready != ncclSuccess) return ready;
  const int split = ++parent->splits;
  ncclComm* child = color == NCCL_SPLIT_NOCOLOR ? nullptr : make_comm(0, 1, "", config);
  if (child != nullptr) child->state = ncclInProgress;
  *made = child;
  return start(parent, [parent, child, color, key, split] {
    const std::vector<long> colors = parent->channel->meet(color);
    const std::vector<long> keys = parent->channel->meet(key);
    if (child == nullptr || colors.empty() || keys.empty()) return;
    std::vector<int> members;
    for (int rank = 0; rank < parent->size; ++rank) {
      if (colors[static_cast<std::size_t>(rank)] == color) members.push_back(rank);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
    });
    child->rank = static_cast<int>(std::find(members.begin(), members.end(), parent->rank) - members.begin());
    child->size = static_cast<int>(members.size());
    child->name = fmt::format("{}-{}-{}", parent->name, split, color);
    start(child, [child] { meet_others(*child); });
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t ready = check_ready(comm); ready != ncclSuccess) return ready;
  return start(comm, [comm] { end(comm); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->work.joinable()) comm->work.join();
  if (!comm->finalized) end(comm);
  if (comm->launcher != nullptr) Simulator::get().destroy_stream(comm->launcher);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->cancelled = true;
  if (comm->work.joinable()) comm->work.join();
  return ncclSuccess;  // operations that end now still use it, so it is not deleted
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->state;
  if (!comm->unlaunched || comm->state != ncclSuccess) {
    if (comm->state != ncclSuccess && comm->state != ncclInProgress) last_error = comm->error;
    return ncclSuccess;
  }
  ncclComm::Unlaunched& collective = *comm->unlaunched;
  if (collective.denied) return ncclSuccess;
  if (collective.polls-- > 0) {
    *result = ncclInProgress;
  } else {
    launch(*comm);
  }
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error - please report this issue to the NCCL developers";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclAllReduce(const void* send, void* result, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const Reduction reduction = reduction_of(comm, op);
  return submit(
      {"ncclAllReduce",
       comm,
       stream,
       {1, type, op, 0, bytes},
       send,
       bytes,
       result,
       bytes,
       [type, reduction](std::size_t offset, std::size_t size, const Channel::Parts& parts, std::byte* to) {
         reduce(type, reduction, parts, 0, to + offset, size / size_of(type));
       }});
}

ncclResult_t ncclBroadcast(const void* send, void* result, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const bool gives = comm->rank == root;
  const bool gets = !gives || send != result;
  return submit({"ncclBroadcast",
                 comm,
                 stream,
                 {2, type, 0, root, bytes},
                 gives ? send : nullptr,
                 bytes,
                 gets ? result : nullptr,
                 bytes,
                 [root](std::size_t offset, std::size_t size, const Channel::Parts& parts, std::byte* to) {
                   std::memcpy(to + offset, parts[static_cast<std::size_t>(root)], size);
                 }});
}

ncclResult_t ncclAllGather(const void* send, void* result, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return submit({"ncclAllGather",
                 comm,
                 stream,
                 {3, type, 0, 0, bytes},
                 send,
                 bytes,
                 result,
                 bytes * static_cast<std::size_t>(comm->size),
                 [bytes](std::size_t offset, std::size_t size, const Channel::Parts& parts, std::byte* to) {
                   for (std::size_t rank = 0; rank < parts.size(); ++rank) {
                     std::memcpy(to + rank * bytes + offset, parts[rank], size);
                   }
                 }});
}

ncclResult_t ncclReduceScatter(const void* send, void* result, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const std::size_t all = bytes * static_cast<std::size_t>(comm->size);
  const std::size_t own = bytes * static_cast<std::size_t>(comm->rank);
  const Reduction reduction = reduction_of(comm, op);
  return submit({"ncclReduceScatter",
                 comm,
                 stream,
                 {4, type, op, 0, all},
                 send,
                 all,
                 result,
                 bytes,
                 [=](std::size_t offset, std::size_t size, const Channel::Parts& parts, std::byte* to) {
                   const std::size_t from = std::max(offset, own);
                   const std::size_t until = std::min(offset + size, own + bytes);
                   if (from >= until) return;
                   reduce(type, reduction, parts, from - offset, to + (from - own),
                          (until - from) / size_of(type));
                 }});
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  auto* data = static_cast<std::byte*>(const_cast<void*>(send));
  return add_message(comm, stream, {peer, false, data, count * size_of(type)});
}

ncclResult_t ncclRecv(void* result, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_message(comm, stream, {peer, true, static_cast<std::byte*>(result), count * size_of(type)});
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (group_depth > 1) {
    --group_depth;
    return ncclSuccess;
  }
  ncclResult_t result = std::exchange(group_error, ncclSuccess);
  const auto calls = std::exchange(group, {});
  const Messages messages = std::exchange(group_messages, {});
  for (auto call = calls.begin(); call != calls.end() && result == ncclSuccess; ++call) result = (*call)();
  --group_depth;
  if (result != ncclSuccess || messages.all.empty()) return result;
  return queue(task_of(messages));
}

}  // extern "C"

}  // namespace lockstep::simulated
// NOLINTEND(readability-identifier-naming)
