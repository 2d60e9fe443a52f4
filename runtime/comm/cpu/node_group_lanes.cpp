// The part of NodeGroup's operations that crosses nodes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/comm/cpu/inter_node.h"
#include "runtime/comm/cpu/node_group.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {
namespace {

std::byte* as_bytes(void* memory) {
  return static_cast<std::byte*>(memory);
}

}  // namespace

// Whether ranks with the same local rank exchange the data between nodes, and the others get it on their node.
bool NodeGroup::over_lanes(const Task& task) const {
  switch (task.request.kind) {
    case OperationKind::all_reduce:
      return true;
    case OperationKind::broadcast:
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
      return inter_node_->equal_nodes();
    case OperationKind::exchange:
    case OperationKind::barrier:
    case OperationKind::end:
      break;
  }
  return false;
}

bool NodeGroup::work_across_nodes(Task& task) {
  if (task.share_done) return copy_on_node(task);
  try {
    return exchange_across_nodes(task);
  } catch (...) {
    task.share_done = true;
    task.error = std::current_exception();
    return true;
  }
}

// Exchanges this rank's part with its lane, or all ranks' parts.
bool NodeGroup::exchange_across_nodes(Task& task) {
  const bool scheduled = over_lanes(task) && task.request.kind != OperationKind::broadcast;
  if (scheduled && place_.local_rank >= slices(task)) return !std::exchange(task.share_done, true);
  if (!task.exchange) {
    // Nodes compare their requests in the order of the operations.
    for (const auto& before : posted_) {
      if (before.get() == &task) break;
      if (!before->exchange && !before->share_done) return false;
    }
    task.exchange = scheduled ? exchange_of(task) : posted_of(task);
    task.exchange->request = task.request;
    task.exchange->label = task.label;
    inter_node_->exchange().start(task.exchange);
    return true;
  }
  if (!task.exchange->done) return false;
  task.share_done = true;
  // Of a broadcast, the other ranks of the node wait for one.
  const bool counts = scheduled || (milestones(task).copies_at > 0 &&
                                    inter_node_->position_of(task.request.root).second == place_.local_rank);
  if (counts) end_share(task);
  return true;
}

// The operations by MPI's own algorithms.
std::shared_ptr<NodeOperation> NodeGroup::posted_of(Task& task) {
  switch (task.request.kind) {
    case OperationKind::broadcast: {
      if (!over_lanes(task)) return inter_node_->broadcast(task.buffer, task.request.root);
      const auto [node, local_rank] = inter_node_->position_of(task.request.root);
      if (local_rank != place_.local_rank) return inter_node_->nothing();
      Buffer buffer = task.buffer;
      if (place_.local_size > 1) buffer.data = task.views[static_cast<std::size_t>(local_rank)];
      return inter_node_->broadcast_on_lane(buffer, node);
    }
    case OperationKind::all_gather:
      return inter_node_->all_gather(task.buffer, task.all);
    case OperationKind::reduce_scatter:
      return inter_node_->reduce_scatter(task.all, task.buffer, scaled_op_of(task.options, place_.size));
    case OperationKind::exchange:
      return inter_node_->exchange(task.sends, task.receives);
    case OperationKind::barrier:
    case OperationKind::all_reduce:
    case OperationKind::end:
      break;
  }
  return inter_node_->barrier();
}

// How far the node must be in an operation that crosses nodes.
NodeGroup::Milestones NodeGroup::milestones(const Task& task) const {
  const auto ranks = static_cast<std::size_t>(place_.local_size);
  if (!over_lanes(task)) return {};
  switch (task.request.kind) {
    case OperationKind::all_reduce:
      return {.copies_at = 0, .ends_at = static_cast<std::size_t>(slices(task))};
    case OperationKind::reduce_scatter:
      return {.copies_at = 0, .ends_at = ranks};
    case OperationKind::broadcast:  // one rank gets the data from another node, the others from it
      return ranks == 1 ? Milestones{} : Milestones{.copies_at = 1, .ends_at = ranks};
    case OperationKind::
        all_gather:  // each rank counts when it has its lane's parts, and when it has copied the others
      return ranks == 1 ? Milestones{} : Milestones{.copies_at = ranks, .ends_at = 2 * ranks};
    case OperationKind::exchange:
    case OperationKind::barrier:
    case OperationKind::end:
      break;
  }
  return {};
}

// Copies what other ranks of the node have got from other nodes.
bool NodeGroup::copy_on_node(Task& task) {
  const std::size_t ready = milestones(task).copies_at;
  if (ready == 0 || task.copied || task.error ||
      slots_.slot(0, task.number).done_chunks.load(std::memory_order_acquire) < ready) {
    return false;
  }
  task.copied = true;
  const std::size_t bytes = task.buffer.bytes();
  if (task.request.kind == OperationKind::broadcast) {
    const auto source = static_cast<std::size_t>(inter_node_->position_of(task.request.root).second);
    if (task.buffer.data != task.views[source] && task.request.root != place_.rank) {
      std::memcpy(task.buffer.data, task.views[source], bytes);
    }
    if (static_cast<int>(source) == place_.local_rank) return true;  // counted when it had the data
  } else {
    for (int node = 0; node < place_.nodes; ++node) {
      for (int local = 0; local < place_.local_size; ++local) {
        std::memcpy(as_bytes(task.all) + inter_node_->rank_of(node, local) * bytes,
                    task.views[static_cast<std::size_t>(local)] + static_cast<std::size_t>(node) * bytes,
                    bytes);
      }
    }
  }
  end_share(task);
  return true;
}

std::shared_ptr<NodeOperation> NodeGroup::exchange_of(const Task& task) const {
  auto operation = std::make_shared<NodeOperation>();
  operation->buffer = {nullptr, task.buffer.count, task.request.type};
  operation->scaled = scaled_op_of(task.options, place_.size);
  operation->wide = is_half(task.request.type) && inter_node_->sums_on_nodes() &&
                    task.request.kind != OperationKind::all_gather;
  if (task.request.kind == OperationKind::all_reduce) {
    reduce_slice(task, *operation);
  } else if (task.request.kind == OperationKind::reduce_scatter) {
    reduce_blocks(task, *operation);
  } else {
    gather_blocks(task, *operation);
  }
  return operation;
}

// An all-reduce: each lane sums a slice over the node, exchanges it, and copies the result to the node's ranks.
void NodeGroup::reduce_slice(const Task& task, NodeOperation& operation) const {
  const DataType type = task.request.type;
  const auto slice = static_cast<std::size_t>(place_.local_rank);
  const auto parts = static_cast<std::size_t>(slices(task));
  const std::size_t first = part_begin(task.request.count, slice, parts, type);
  for (std::byte* view : task.views) operation.operands.push_back(view + first * size_of(type));
  operation.buffer = {operation.operands[slice],
                      part_begin(task.request.count, slice + 1, parts, type) - first, type};
  if (!is_inline(task)) operation.results = operation.operands;
}

// A reduce-scatter: each lane sums the blocks of its ranks over the node, so a node sends as much as one rank has.
void NodeGroup::reduce_blocks(const Task& task, NodeOperation& operation) const {
  operation.operands = task.views;
  operation.sent.clear();
  for (int node = 0; node < place_.nodes; ++node) {
    operation.sent.push_back({inter_node_->rank_of(node, place_.local_rank) * task.buffer.bytes(),
                              inter_node_->exchange().block(node)});
  }
  operation.results = {as_bytes(task.buffer.data)};
  operation.received = {{0, inter_node_->exchange().block(place_.node)}};
}

// An all-gather: each rank gets the parts of its lane, and then copies the others on the node.
void NodeGroup::gather_blocks(const Task& task, NodeOperation& operation) const {
  const bool alone = place_.local_size == 1;
  operation.operands = {as_bytes(task.buffer.data)};
  operation.sent = {{0, inter_node_->exchange().block(place_.node)}};
  operation.results = {alone ? as_bytes(task.all) : task.views[static_cast<std::size_t>(place_.local_rank)]};
  operation.received.clear();
  for (int node = 0; node < place_.nodes; ++node) {
    const std::size_t place = alone ? inter_node_->rank_of(node, 0) : static_cast<std::size_t>(node);
    operation.received.push_back({place * task.buffer.bytes(), inter_node_->exchange().block(node)});
  }
}

}  // namespace lockstep::comm::cpu
