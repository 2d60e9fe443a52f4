#include "runtime/comm/cpu/node_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "common/error.h"
#include "runtime/comm/cpu/inter_node.h"
#include "runtime/comm/failure.h"

namespace lockstep::comm::cpu {
namespace {

// The maximum number of bytes that are copied into shared memory at a time.
constexpr std::size_t kMaxStagedBytes = std::size_t{64} << 20;
// Larger data of an all-reduce on one node is not copied as a whole.
constexpr std::size_t kMaxWholeBytes = std::size_t{1} << 20;
// Bytes of a chunk, the unit of work of a rank: large enough that claiming one costs little, and small enough
// that the chunk and its result stay in the second-level cache.
constexpr std::size_t kMaxChunk = std::size_t{128} << 10;
constexpr std::size_t kMinChunk = std::size_t{4} << 10;

struct Chunks {
  Chunks(const OperationRequest& request, std::size_t sharers)
      : elements(std::clamp(request.count * size_of(request.type) / (4 * sharers) / kMinChunk * kMinChunk,
                            kMinChunk, kMaxChunk) /
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

}  // namespace

NodeGroup::NodeGroup(OperationSlots slots, const RankInfo& place, std::vector<int> ranks,
                     std::shared_ptr<InterNode> inter_node)
    : slots_(std::move(slots)),
      place_(place),
      ranks_(std::move(ranks)),
      inter_node_(std::move(inter_node)),
      pieces_(slots_, place.local_rank, place.local_size),
      peers_(static_cast<std::size_t>(place.local_size)) {
}

bool NodeGroup::advance(bool waiting) {
  bool moved = exchanging() && inter_node_->exchange().advance();
  while (post_next()) moved = true;
  for (const auto& task : posted_) {
    if (!all_have_asked(*task)) {
      end_job_if_a_rank_left(*task);
      break;
    }
    if (!task->compared) compare(*task);
    if (!may_work(*task)) break;
    moved |= work(*task, waiting);
  }
  while (!posted_.empty() && finished(*posted_.front())) {
    complete(*posted_.front());
    posted_.pop_front();
    moved = true;
  }
  return moved;
}

bool NodeGroup::exchanging() const {
  return inter_node_ != nullptr && !inter_node_->exchange().idle();
}

NetworkUse NodeGroup::network_use() const {
  return inter_node_ == nullptr ? NetworkUse{} : inter_node_->exchange().last_use();
}

// Whether an operation that is not complete uses memory of `task`. Operations on the same memory run in order.
bool NodeGroup::overlaps_earlier(const Task& task) const {
  const auto ranges_of = [this](const Task& of) {
    Buffer all{of.all, 0, of.buffer.type};
    if (of.all != nullptr) all.count = of.buffer.count * static_cast<std::size_t>(place_.size);
    return std::array{of.buffer, all};
  };
  if (task.request.kind == OperationKind::exchange) return !posted_.empty();
  if (!posted_.empty() && posted_.back()->request.kind == OperationKind::exchange) return true;
  const auto overlap = [](const Buffer& left, const Buffer& right) {
    return bytes_of(left.data) < bytes_of(right.data) + right.bytes() &&
           bytes_of(right.data) < bytes_of(left.data) + left.bytes();
  };
  const auto mine = ranges_of(task);
  return std::any_of(posted_.begin(), posted_.end(), [&](const auto& before) {
    for (const Buffer& theirs : ranges_of(*before)) {
      if (overlap(mine[0], theirs) || overlap(mine[1], theirs)) return true;
    }
    return false;
  });
}

// Moves the oldest task of queued_ into a slot, if one is free.
bool NodeGroup::post_next() {
  if (queued_.empty()) return false;
  Task& task = *queued_.front();
  if (overlaps_earlier(task)) return false;
  for (int rank = 0; rank < place_.local_size && next_number_ >= kSlots; ++rank) {
    if (slots_.area(rank).completed.load(std::memory_order_acquire) <= next_number_ - kSlots) return false;
  }
  task.number = next_number_;
  OperationSlot& slot = my_slot(task);
  try {
    if (!stage(task, slot)) return false;
  } catch (const Error& error) {
    // The other ranks would wait for this rank's data for ever.
    end_job(fmt::format("{}: {}", task.operation->name(), error.what()));
  }
  slot.request = task.request;
  slot.asked_ns = task.operation->times().asked_ns;
  slot.free_count = shm::free_count();
  slot.label[task.label.copy(slot.label, sizeof slot.label - 1)] = 0;
  slot.next_chunk.store(0, std::memory_order_relaxed);
  slot.done_chunks.store(0, std::memory_order_relaxed);
  posted_.push_back(std::move(queued_.front()));
  queued_.pop_front();
  slots_.area(place_.local_rank).asked.store(++next_number_, std::memory_order_seq_cst);
  // The others can work only now. Of ranks that ask at the same time, at least one sees all.
  if (all_have_asked(*posted_.back())) slots_.notify_all();
  return true;
}

// The part of this rank's data that other ranks of the node read (and, in an all-reduce, write).
Buffer NodeGroup::shared_part(const Task& task) const {
  if (task.request.kind == OperationKind::exchange) {
    return {nullptr, staged_bytes_of(task.sends), DataType::u8};
  }
  if (task.request.kind == OperationKind::reduce_scatter) {
    return {task.all, task.buffer.count * static_cast<std::size_t>(place_.size), task.buffer.type};
  }
  if (task.request.kind == OperationKind::all_gather && inter_node_ != nullptr) {
    // The parts that this rank gets from the other nodes, by node.
    return {nullptr, task.buffer.count * static_cast<std::size_t>(place_.nodes), task.buffer.type};
  }
  return task.buffer;
}

bool NodeGroup::is_inline(const Task& task) const {
  return task.request.kind != OperationKind::exchange && shared_part(task).bytes() <= kInlineBytes;
}

// Whether PieceExchange sums the data unless all ranks can map it.
bool NodeGroup::may_be_in_pieces(const Task& task) const {
  return inter_node_ == nullptr && place_.local_size > 1 && task.request.kind == OperationKind::all_reduce &&
         task.buffer.bytes() > kMaxWholeBytes;
}

bool NodeGroup::shares_data(const Task& task) const {
  if (task.request.kind == OperationKind::barrier) return false;
  return inter_node_ == nullptr || over_lanes(task);
}

// Puts the data where the other ranks find it. Returns false if that must wait.
bool NodeGroup::stage(Task& task, OperationSlot& slot) {
  slot.location = {};
  if (!shares_data(task)) return true;
  bool has_data = true;
  if (task.request.kind == OperationKind::broadcast) {
    has_data = task.request.root == place_.rank;
    const bool passes_on =
        inter_node_ != nullptr && inter_node_->position_of(task.request.root).second == place_.local_rank;
    if (!has_data && !passes_on) return true;
  }
  const Buffer part = shared_part(task);
  if (task.request.kind == OperationKind::exchange && part.count == 0) return true;
  has_data = has_data && part.data != nullptr;
  if (is_inline(task)) {
    if (has_data && part.bytes() > 0) std::memcpy(slot.data, part.data, part.bytes());
    return true;
  }
  if (place_.local_size == 1) return true;
  if (part.data != nullptr) {
    if (const auto registered = shm::find(part.data, part.bytes())) {
      slot.location = *registered;
      return true;
    }
  }
  if (may_be_in_pieces(task)) return true;
  if (staged_bytes_ > 0 && staged_bytes_ + part.bytes() > kMaxStagedBytes) return false;
  task.staging = staging_.take(part.bytes());
  staged_bytes_ += part.bytes();
  if (has_data) std::memcpy(task.staging.get(), part.data, part.bytes());
  if (task.request.kind == OperationKind::exchange) stage_messages(task);
  slot.location = *shm::find(task.staging.get(), part.bytes());
  return true;
}

bool NodeGroup::all_have_asked(const Task& task) const {
  for (int rank = 0; rank < place_.local_size; ++rank) {
    if (slots_.area(rank).asked.load(std::memory_order_seq_cst) <= task.number) return false;
  }
  return true;
}

// A rank that has left will never ask for `task`.
void NodeGroup::end_job_if_a_rank_left(const Task& task) const {
  for (int rank = 0; rank < place_.local_size; ++rank) {
    const RankArea& area = slots_.area(rank);
    if (area.left.load(std::memory_order_acquire) &&
        area.asked.load(std::memory_order_acquire) <= task.number) {
      end_job_by_leaving(slots_, place_, rank, task.operation->name());
    }
  }
}

void NodeGroup::leave(bool world_ends) {
  slots_.area(place_.local_rank).left.store(true, std::memory_order_release);
  slots_.notify_all();
  if (!world_ends || inter_node_ == nullptr || place_.local_rank >= inter_node_->lanes()) return;
  auto end = inter_node_->nothing();
  end->compares = true;
  end->request = {.kind = OperationKind::end};
  end->label = "World";
  inter_node_->exchange().start(std::move(end));
}

// Called when all ranks have asked: checks that they asked for the same, and notes which rank was last.
void NodeGroup::compare(Task& task) {
  task.operation->begin();
  int last = 0;
  for (int rank = 0; rank < place_.local_size; ++rank) {
    const OperationSlot& slot = slots_.slot(rank, task.number);
    if (slot.request != slots_.slot(0, task.number).request) {
      end_job_by_mismatch(slots_, place_, rank, task.number);
    }
    if (slot.asked_ns > slots_.slot(last, task.number).asked_ns) last = rank;
    task.in_pieces |= may_be_in_pieces(task) && slot.location.segment.descriptor < 0;
  }
  if (inter_node_ == nullptr) {
    task.operation->set_late_rank(slots_.slot(last, task.number).asked_ns,
                                  ranks_[static_cast<std::size_t>(last)]);
  }
  task.compared = true;
}

// Maps the data of the other ranks. Returns false if it is too late: the others have done this rank's share
// of the work, the operation is over for them, and they may have freed the memory.
bool NodeGroup::find_data(Task& task) {
  if (!task.views.empty() || !shares_data(task)) return true;
  std::vector<std::byte*> views;
  try {
    for (int rank = 0; rank < place_.local_size; ++rank) views.push_back(data_of(rank, task));
  } catch (const Error&) {
    if (finished(task)) return false;
    throw;
  }
  task.views = std::move(views);
  return true;
}

std::byte* NodeGroup::data_of(int local_rank, Task& task) {
  OperationSlot& slot = slots_.slot(local_rank, task.number);
  if (is_inline(task)) return slot.data;
  if (local_rank == place_.local_rank) {
    return bytes_of(task.staging ? task.staging.get() : shared_part(task).data);
  }
  if (slot.location.segment.descriptor < 0) return nullptr;  // it has nothing that others get
  Peer& peer = peers_[static_cast<std::size_t>(local_rank)];
  if (peer.free_count != slot.free_count) {
    peer.segments.clear();
    peer.free_count = slot.free_count;
  }
  auto& segment = peer.segments[slot.location.segment.inode];
  if (!segment) segment = shm::map(slot.location.segment);
  task.mapped.push_back(segment);
  return bytes_of(segment.get()) + slot.location.offset;
}

// An earlier operation may still set the scale, in its `then`.
bool NodeGroup::may_work(const Task& task) const {
  if (task.options.scale == nullptr) return true;
  for (const auto& before : posted_) {
    if (before.get() == &task) return true;
    if (before->options.then) return false;
  }
  return true;
}

bool NodeGroup::work(Task& task, bool waiting) {
  if (has_no_slice(task)) return !std::exchange(task.share_done, true);
  if (task.in_pieces) return work_in_pieces(task, waiting);
  if (!find_data(task)) return false;
  if (inter_node_ != nullptr) {
    return work_across_nodes(task);
  }
  if (task.request.kind == OperationKind::barrier || is_inline(task)) {
    return false;  // take_result() does the work
  }
  if (task.request.kind == OperationKind::all_reduce) return work_on_chunks(task, waiting);
  if (task.share_done) return false;
  copy_parts(task);
  end_share(task);
  return true;
}

// A rank that still computes leaves the work to a rank that waits, if there is one.
bool NodeGroup::work_on_chunks(Task& task, bool waiting) {
  if (!waiting && (task.share_done || slots_.any_rank_waits())) return false;
  bool moved = work_on_share(task, place_.local_rank);
  task.share_done = true;
  for (int owner = 0; waiting && owner < place_.local_size; ++owner) moved |= work_on_share(task, owner);
  return moved;
}

// Works on chunks of the owner's share until none is left.
bool NodeGroup::work_on_share(Task& task, int owner) {
  const auto ranks = static_cast<std::size_t>(place_.local_size);
  const Chunks chunks(task.request, ranks);
  const std::size_t begin = chunks.share_begin(static_cast<std::size_t>(owner));
  const std::size_t end = chunks.share_begin(static_cast<std::size_t>(owner) + 1);
  auto& next = slots_.slot(owner, task.number).next_chunk;
  auto& done = slots_.slot(0, task.number).done_chunks;
  const ScaledOp scaled = scaled_op_of(task.options, place_.size);
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
    reduce_to_all(inputs, outputs, count, task.request.type, scaled);
    moved = true;
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks.count) slots_.notify_all();
  }
  return moved;
}

// One operation after the other, in the same order on all ranks.
bool NodeGroup::work_in_pieces(Task& task, bool waiting) {
  if (task.share_done || (in_pieces_ != nullptr && in_pieces_ != &task)) return false;
  if (in_pieces_ == nullptr) {
    pieces_.start(task.buffer, scaled_op_of(task.options, place_.size));
    in_pieces_ = &task;
  }
  const bool moved = pieces_.advance(waiting);
  if (!pieces_.done()) return moved;
  in_pieces_ = nullptr;
  task.share_done = true;
  return true;
}

// Broadcast, all-gather, reduce-scatter: every rank copies what it needs from the data of the others.
void NodeGroup::copy_parts(Task& task) {
  const std::size_t bytes = task.buffer.bytes();
  const auto my_index = static_cast<std::size_t>(place_.rank);
  switch (task.request.kind) {
    case OperationKind::broadcast:
      if (task.request.root != place_.rank) {
        std::memcpy(task.buffer.data, task.views[static_cast<std::size_t>(task.request.root)], bytes);
      }
      return;
    case OperationKind::all_gather:
      for (std::size_t rank = 0; rank < task.views.size(); ++rank) {
        std::byte* into = bytes_of(task.all) + rank * bytes;
        const void* from = rank == my_index ? task.buffer.data : task.views[rank];
        if (into != from) std::memmove(into, from, bytes);
      }
      return;
    case OperationKind::reduce_scatter: {
      std::vector<const void*> inputs;
      for (const std::byte* view : task.views) inputs.push_back(view + my_index * bytes);
      reduce(inputs, task.buffer.data, task.buffer.count, task.request.type,
             scaled_op_of(task.options, place_.size));
      return;
    }
    case OperationKind::exchange:
      return take_messages(task);
    case OperationKind::all_reduce:
    case OperationKind::barrier:
    case OperationKind::end:
      return;
  }
}

// This rank's share of the work is done.
void NodeGroup::end_share(Task& task) {
  task.share_done = true;
  slots_.slot(0, task.number).done_chunks.fetch_add(1, std::memory_order_acq_rel);
  slots_.notify_all();
}

// A rank beyond the lanes does nothing in an all-reduce. The others do not wait for it, so their memory may
// already be freed; data in the slots is still there.
bool NodeGroup::has_no_slice(const Task& task) const {
  return inter_node_ != nullptr && task.request.kind == OperationKind::all_reduce && !is_inline(task) &&
         place_.local_rank >= slices(task);
}

int NodeGroup::slices(const Task& task) const {
  return is_inline(task) && task.request.kind == OperationKind::all_reduce ? 1 : inter_node_->lanes();
}

bool NodeGroup::finished(const Task& task) const {
  if (!task.compared) return false;
  if (task.error) return true;
  if (task.in_pieces) return task.share_done;
  const std::size_t done = slots_.slot(0, task.number).done_chunks.load(std::memory_order_acquire);
  if (inter_node_ != nullptr) {
    const Milestones needed = milestones(task);
    return task.share_done && (needed.copies_at == 0 || task.copied) && done >= needed.ends_at;
  }
  if (task.request.kind == OperationKind::barrier) return true;
  if (is_inline(task)) return !task.views.empty();  // work() sets them, once may_work() allows it
  const auto ranks = static_cast<std::size_t>(place_.local_size);
  return done == (task.request.kind == OperationKind::all_reduce ? Chunks(task.request, ranks).count : ranks);
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
    staged_bytes_ -= shared_part(task).bytes();
    staging_.give_back(std::move(task.staging));
  }
  slots_.area(place_.local_rank).completed.store(task.number + 1, std::memory_order_release);
  slots_.notify_all();  // a rank may wait for a free slot
  task.options = {};    // releases what the callbacks hold
  task.operation->finish(std::move(task.error));
}

// Moves the result from the slots or the staging memory to the caller's buffer.
void NodeGroup::take_result(Task& task) {
  const std::size_t bytes = task.buffer.bytes();
  if (bytes == 0 || !shares_data(task)) return;
  if (inter_node_ != nullptr && task.request.kind != OperationKind::all_reduce) return;
  if (inter_node_ != nullptr && is_inline(task)) {
    std::memcpy(task.buffer.data, task.views[0], bytes);
  } else if (is_inline(task)) {
    if (task.request.kind != OperationKind::all_reduce) return copy_parts(task);
    const std::vector<const void*> inputs(task.views.begin(), task.views.end());
    reduce(inputs, task.buffer.data, task.buffer.count, task.request.type,
           scaled_op_of(task.options, place_.size));
  } else if (task.staging && task.request.kind == OperationKind::all_reduce) {
    std::memcpy(task.buffer.data, task.staging.get(), bytes);
  }
}

}  // namespace lockstep::comm::cpu
