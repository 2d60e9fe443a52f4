#include "runtime/comm/shm/node_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/shm/mismatch.h"

namespace lockstep::comm::shm {
namespace {

// Copies of data that lies elsewhere, in flight at a time.
constexpr std::size_t kStagedBytes = std::size_t{64} << 20;
// A chunk is what one rank adds up before the next may be another's: large enough to cost nothing, small
// enough to stay in the second-level cache with its results.
constexpr std::size_t kLargestChunk = std::size_t{128} << 10;
constexpr std::size_t kSmallestChunk = std::size_t{4} << 10;

struct Chunks {
  Chunks(const Request& request, std::size_t sharers)
      : elements(std::clamp(
                     request.count * size_of(request.type) / (4 * sharers) / kSmallestChunk * kSmallestChunk,
                     kSmallestChunk, kLargestChunk) /
                 size_of(request.type)),
        count((request.count + elements - 1) / elements),
        ranks(sharers) {}
  std::size_t share_begin(std::size_t rank) const { return count * rank / ranks; }

  std::size_t elements;  // of a chunk
  std::size_t count;
  std::size_t ranks;
};

std::byte* bytes_of(void* memory) {
  return static_cast<std::byte*>(memory);
}

// What others read of this rank's data, and for an all-reduce write too.
Buffer shared_part(const Task& task, int ranks) {
  if (task.request.kind != Kind::reduce_scatter) return task.buffer;
  return {task.all, task.buffer.count * static_cast<std::size_t>(ranks), task.buffer.type};
}

}  // namespace

NodeGroup::NodeGroup(Board board, const Place& place, std::vector<int> ranks, Across* across)
    : board_(std::move(board)),
      place_(place),
      ranks_(std::move(ranks)),
      across_(across),
      peers_(static_cast<std::size_t>(place.local_size)) {
}

void NodeGroup::add(std::shared_ptr<Task> task) {
  asked_.push_back(std::move(task));
}

bool NodeGroup::advance(bool waiting) {
  bool moved = false;
  while (post_next()) moved = true;
  for (const auto& task : running_) {
    if (!all_have_asked(*task)) {
      notice_who_left(*task);
      break;
    }
    if (!task->compared) compare(*task);
    if (!may_work(*task)) break;
    moved |= work(*task, waiting);
  }
  while (!running_.empty() && finished(*running_.front())) {
    complete(*running_.front());
    running_.pop_front();
    moved = true;
  }
  return moved;
}

// Writes the oldest of asked_ on the board, if there is room.
bool NodeGroup::post_next() {
  if (asked_.empty()) return false;
  Task& task = *asked_.front();
  for (int rank = 0; rank < place_.local_size && next_number_ >= kSlots; ++rank) {
    if (board_.of(rank).completed.load(std::memory_order_acquire) <= next_number_ - kSlots) return false;
  }
  task.number = next_number_;
  Slot& slot = mine(task);
  try {
    if (!stage(task, slot)) return false;
  } catch (const Error& error) {
    // The others would wait for this rank's part for ever.
    end_job(fmt::format("{}: {}", task.operation->name(), error.what()));
  }
  slot.request = task.request;
  slot.asked_ns = task.operation->times().asked_ns;
  slot.frees = frees();
  slot.label[task.label.copy(slot.label, sizeof slot.label - 1)] = 0;
  slot.next_chunk.store(0, std::memory_order_relaxed);
  slot.done_chunks.store(0, std::memory_order_relaxed);
  running_.push_back(std::move(asked_.front()));
  asked_.pop_front();
  board_.of(place_.local_rank).asked.store(++next_number_, std::memory_order_release);
  board_.ring();
  return true;
}

bool NodeGroup::is_inline(const Task& task) const {
  return shared_part(task, place_.size).bytes() <= kInlineBytes;
}

// Only all-reduces touch other ranks' data where there are other nodes.
bool NodeGroup::shares_data(const Task& task) const {
  if (task.request.kind == Kind::barrier) return false;
  return across_ == nullptr || task.request.kind == Kind::all_reduce;
}

// Puts the data where others find it; false where that has to wait.
bool NodeGroup::stage(Task& task, Slot& slot) {
  slot.location = {};
  if (!shares_data(task)) return true;
  if (task.request.kind == Kind::broadcast && task.request.root != place_.rank) return true;
  const Buffer part = shared_part(task, place_.size);
  if (is_inline(task)) {
    if (part.bytes() > 0) std::memcpy(slot.data, part.data, part.bytes());
    return true;
  }
  if (place_.local_size == 1) return true;
  if (const auto registered = find(part.data, part.bytes())) {
    slot.location = *registered;
    return true;
  }
  if (staged_ > 0 && staged_ + part.bytes() > kStagedBytes) return false;
  task.staging = staging_.take(part.bytes());
  staged_ += part.bytes();
  std::memcpy(task.staging.get(), part.data, part.bytes());
  slot.location = *find(task.staging.get(), part.bytes());
  return true;
}

bool NodeGroup::all_have_asked(const Task& task) const {
  for (int rank = 0; rank < place_.local_size; ++rank) {
    if (board_.of(rank).asked.load(std::memory_order_acquire) <= task.number) return false;
  }
  return true;
}

// A rank that has left never asks.
void NodeGroup::notice_who_left(const Task& task) const {
  for (int rank = 0; rank < place_.local_size; ++rank) {
    const RankArea& area = board_.of(rank);
    if (area.left.load(std::memory_order_acquire) &&
        area.asked.load(std::memory_order_acquire) <= task.number) {
      end_job_by_leaving(board_, place_, rank, task.operation->name());
    }
  }
}

void NodeGroup::leave(bool world_ends) {
  board_.of(place_.local_rank).left.store(true, std::memory_order_release);
  board_.ring();
  if (world_ends && across_ != nullptr && place_.local_rank < across_->lanes()) {
    across_->agree({.kind = Kind::end}, "World");
  }
}

// All have asked for this one: is it the same, and who was last?
void NodeGroup::compare(Task& task) {
  task.operation->begin();
  int last = 0;
  for (int rank = 0; rank < place_.local_size; ++rank) {
    const Slot& slot = board_.slot(rank, task.number);
    if (slot.request != board_.slot(0, task.number).request) {
      end_job_by_mismatch(board_, place_, rank, task.number);
    }
    if (slot.asked_ns > board_.slot(last, task.number).asked_ns) last = rank;
  }
  if (across_ == nullptr) {
    task.operation->set_last_rank(board_.slot(last, task.number).asked_ns,
                                  ranks_[static_cast<std::size_t>(last)]);
  }
  task.compared = true;
}

// Maps the others' data. False when that came too late: the others have done this rank's share of the work,
// the operation is over for them, and its memory may be gone.
bool NodeGroup::find_views(Task& task) {
  if (!task.views.empty() || !shares_data(task)) return true;
  std::vector<std::byte*> views;
  try {
    for (int rank = 0; rank < place_.local_size; ++rank) views.push_back(view_of(rank, task));
  } catch (const Error&) {
    if (finished(task)) return false;
    throw;
  }
  task.views = std::move(views);
  return true;
}

std::byte* NodeGroup::view_of(int local_rank, Task& task) {
  Slot& slot = board_.slot(local_rank, task.number);
  if (is_inline(task)) return slot.data;
  if (local_rank == place_.local_rank) {
    return bytes_of(task.staging ? task.staging.get() : shared_part(task, place_.size).data);
  }
  if (slot.location.segment.descriptor < 0) return nullptr;  // no root of a broadcast
  Peer& peer = peers_[static_cast<std::size_t>(local_rank)];
  if (peer.frees != slot.frees) {
    peer.segments.clear();
    peer.frees = slot.frees;
  }
  auto& segment = peer.segments[slot.location.segment.inode];
  if (!segment) segment = map(slot.location.segment);
  task.mapped.push_back(segment);
  return bytes_of(segment.get()) + slot.location.offset;
}

// A scale may be decided by what an operation before it does at its end.
bool NodeGroup::may_work(const Task& task) const {
  if (task.options.scale == nullptr) return true;
  for (const auto& before : running_) {
    if (before.get() == &task) return true;
    if (before->options.then) return false;
  }
  return true;
}

bool NodeGroup::work(Task& task, bool waiting) {
  if (has_no_slice(task)) return !std::exchange(task.share_done, true);
  if (!find_views(task)) return false;
  if (across_ != nullptr) {
    if (task.share_done) return false;
    work_across(task);
  } else if (task.request.kind == Kind::barrier || is_inline(task)) {
    return false;  // what is left is done at its end
  } else if (task.request.kind == Kind::all_reduce) {
    return work_on_chunks(task, waiting);
  } else {
    if (task.share_done) return false;
    copy_parts(task);
    end_share(task);
  }
  return true;
}

// A rank that still computes leaves the work to those who wait, if there are any.
bool NodeGroup::work_on_chunks(Task& task, bool waiting) {
  if (!waiting && (task.share_done || board_.anyone_waits())) return false;
  bool moved = work_on_share(task, place_.local_rank);
  task.share_done = true;
  for (int owner = 0; waiting && owner < place_.local_size; ++owner) moved |= work_on_share(task, owner);
  return moved;
}

// Takes chunks of the owner's share until there are none left.
bool NodeGroup::work_on_share(Task& task, int owner) {
  const auto ranks = static_cast<std::size_t>(place_.local_size);
  const Chunks chunks(task.request, ranks);
  const std::size_t begin = chunks.share_begin(static_cast<std::size_t>(owner));
  const std::size_t end = chunks.share_begin(static_cast<std::size_t>(owner) + 1);
  auto& next = board_.slot(owner, task.number).next_chunk;
  auto& done = board_.slot(0, task.number).done_chunks;
  const Finish finish = finish_of(task.options, place_.size);
  std::vector<const void*> inputs(ranks);
  std::vector<void*> outputs(ranks);
  bool moved = false;
  while (next.load(std::memory_order_relaxed) < end - begin) {
    const std::size_t chunk = begin + next.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= end) break;
    const std::size_t first = chunk * chunks.elements;
    const std::size_t count = std::min(chunks.elements, static_cast<std::size_t>(task.request.count) - first);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      outputs[rank] = task.views[rank] + first * size_of(task.request.type);
      inputs[rank] = outputs[rank];
    }
    reduce_to_all(inputs, outputs, count, task.request.type, finish);
    moved = true;
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks.count) board_.ring();
  }
  return moved;
}

// Broadcast, all-gather, reduce-scatter: every rank takes what it needs from the others' data.
void NodeGroup::copy_parts(Task& task) {
  const std::size_t bytes = task.buffer.bytes();
  const auto my_index = static_cast<std::size_t>(place_.rank);
  switch (task.request.kind) {
    case Kind::broadcast:
      if (task.request.root != place_.rank) {
        std::memcpy(task.buffer.data, task.views[static_cast<std::size_t>(task.request.root)], bytes);
      }
      return;
    case Kind::all_gather:
      for (std::size_t rank = 0; rank < task.views.size(); ++rank) {
        std::byte* into = bytes_of(task.all) + rank * bytes;
        const void* from = rank == my_index ? task.buffer.data : task.views[rank];
        if (into != from) std::memmove(into, from, bytes);
      }
      return;
    case Kind::reduce_scatter: {
      std::vector<const void*> inputs;
      for (const std::byte* view : task.views) inputs.push_back(view + my_index * bytes);
      reduce(inputs, task.buffer.data, task.buffer.count, task.request.type,
             finish_of(task.options, place_.size));
      return;
    }
    case Kind::all_reduce:
    case Kind::barrier:
    case Kind::end:
      return;
  }
}

// This rank's one part of the work is done.
void NodeGroup::end_share(Task& task) {
  task.share_done = true;
  board_.slot(0, task.number).done_chunks.fetch_add(1, std::memory_order_acq_rel);
  board_.ring();
}

void NodeGroup::work_across(Task& task) {
  task.share_done = true;
  try {
    if (task.request.kind == Kind::all_reduce) return reduce_across(task);
    if (place_.local_rank == 0) across_->agree(task.request, task.label);
    switch (task.request.kind) {
      case Kind::broadcast:
        return across_->broadcast(task.buffer, task.request.root);
      case Kind::all_gather:
        return across_->all_gather(task.buffer, task.all);
      case Kind::reduce_scatter:
        return across_->reduce_scatter(task.all, task.buffer, finish_of(task.options, place_.size));
      case Kind::barrier:
        return across_->barrier();
      case Kind::all_reduce:
      case Kind::end:
        return;
    }
  } catch (...) {
    task.error = std::current_exception();
  }
}

// A rank beyond the lanes does nothing for an all-reduce, and the others do not wait for it: by now their
// memory may be gone. What is in the board is there.
bool NodeGroup::has_no_slice(const Task& task) const {
  return across_ != nullptr && task.request.kind == Kind::all_reduce && !is_inline(task) &&
         place_.local_rank >= slices(task);
}

int NodeGroup::slices(const Task& task) const {
  return is_inline(task) ? 1 : across_->lanes();
}

// Adds up this rank's slice over the node, exchanges it with the other nodes, and gives it to everyone here.
void NodeGroup::reduce_across(Task& task) {
  if (place_.local_rank >= slices(task)) return;
  across_->agree(task.request, task.label);
  const DataType type = task.request.type;
  const auto slice = static_cast<std::size_t>(place_.local_rank);
  const auto parts = static_cast<std::size_t>(slices(task));
  const std::size_t begin = part_begin(task.request.count, slice, parts, type);
  const std::size_t count = part_begin(task.request.count, slice + 1, parts, type) - begin;
  std::vector<const void*> inputs;
  for (std::byte* view : task.views) inputs.push_back(view + begin * size_of(type));
  std::byte* own = task.views[slice] + begin * size_of(type);
  const Finish finish = finish_of(task.options, place_.size);
  if (is_half(type)) {
    wide_.resize(std::max(wide_.size(), count));
    reduce_wide(inputs, wide_.data(), count, type, finish.op);
    across_->all_reduce({wide_.data(), count, DataType::f32}, finish);
    narrow(wide_.data(), own, count, type);
  } else {
    if (inputs.size() > 1) reduce(inputs, own, count, type, {.op = finish.op, .scale = std::nullopt});
    across_->all_reduce({own, count, type}, finish);
  }
  if (!is_inline(task)) {
    for (std::size_t rank = 0; rank < task.views.size(); ++rank) {
      if (rank != slice) std::memcpy(task.views[rank] + begin * size_of(type), own, count * size_of(type));
    }
  }
  board_.slot(0, task.number).done_chunks.fetch_add(1, std::memory_order_acq_rel);
  board_.ring();
}

bool NodeGroup::finished(const Task& task) const {
  if (!task.compared) return false;
  if (task.error) return true;
  const std::size_t done = board_.slot(0, task.number).done_chunks.load(std::memory_order_acquire);
  const bool reduces = task.request.kind == Kind::all_reduce;
  if (across_ != nullptr)
    return task.share_done && (!reduces || done == static_cast<std::size_t>(slices(task)));
  if (task.request.kind == Kind::barrier) return true;
  if (is_inline(task)) return !task.views.empty();  // not before may_work() says so
  const auto ranks = static_cast<std::size_t>(place_.local_size);
  return done == (reduces ? Chunks(task.request, ranks).count : ranks);
}

void NodeGroup::complete(Task& task) {
  if (!task.error) {
    try {
      take_result(task);
      if (task.options.then) task.options.then();
    } catch (...) {
      task.error = std::current_exception();
    }
  }
  if (task.staging) {
    staged_ -= shared_part(task, place_.size).bytes();
    staging_.give_back(std::move(task.staging));
  }
  board_.of(place_.local_rank).completed.store(task.number + 1, std::memory_order_release);
  board_.ring();      // someone may wait for a free slot
  task.options = {};  // lets go of what it holds
  task.operation->finish(std::move(task.error));
}

// What lies in the board or in staging comes to where the caller wants it.
void NodeGroup::take_result(Task& task) {
  const std::size_t bytes = task.buffer.bytes();
  if (bytes == 0 || !shares_data(task)) return;
  if (across_ != nullptr && is_inline(task)) {
    std::memcpy(task.buffer.data, task.views[0], bytes);
  } else if (is_inline(task)) {
    if (task.request.kind != Kind::all_reduce) return copy_parts(task);
    const std::vector<const void*> inputs(task.views.begin(), task.views.end());
    reduce(inputs, task.buffer.data, task.buffer.count, task.request.type,
           finish_of(task.options, place_.size));
  } else if (task.staging && task.request.kind == Kind::all_reduce) {
    std::memcpy(task.buffer.data, task.staging.get(), bytes);
  }
}

}  // namespace lockstep::comm::shm
