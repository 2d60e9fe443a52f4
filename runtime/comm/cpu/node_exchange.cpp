#include "runtime/comm/cpu/node_exchange.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "common/error.h"
#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::cpu {
namespace {

constexpr int kFirstTag = 16;
constexpr std::uint64_t kSegmentTags = 512;  // more than can be active
constexpr int kUnusedTag = kFirstTag - 1;

constexpr std::size_t kUncalledBytes = std::size_t{128} << 10;  // between two calls of MPI

constexpr std::size_t kBurstBytes = std::size_t{256} << 10;  // sent without polling

constexpr std::size_t kAlignment = 64;
constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

NetworkUse use_of(const std::vector<Round>& rounds) {
  NetworkUse use;
  std::vector<int> peers;
  for (const Round& round : rounds) {
    use.rounds += round.sends.empty() && round.receives.empty() ? 0 : 1;
    for (const auto& message : round.sends) peers.push_back(message.peer);
    for (const auto& message : round.receives) peers.push_back(message.peer);
  }
  std::sort(peers.begin(), peers.end());
  use.peers = static_cast<int>(std::unique(peers.begin(), peers.end()) - peers.begin());
  return use;
}

}  // namespace

struct NodeExchange::Running {
  Running(std::shared_ptr<NodeOperation> started, MPI_Comm lane, int node, int nodes)
      : operation(std::move(started)) {
    if (operation->compares) check.emplace(lane, node, nodes, operation->request, operation->label);
  }

  /// Calls MPI until the requests match.
  bool matched() { return matches = matches || !check || check->matched(); }

  std::shared_ptr<NodeOperation> operation;
  std::optional<RequestCheck> check;
  bool matches = false;               // as matched() found
  bool posted = false;                // MPI's operation
  std::vector<MPI_Request> requests;  // of it
  ScheduleForm form = ScheduleForm::slices;
  std::size_t blocks = 1;         // whose elements travel together
  std::size_t segment_count = 0;  // elements of a segment, of each block
  std::size_t next = 0;           // element at which the next segment begins
  int active = 0;                 // segments
};

struct NodeExchange::Segment {
  Running* running = nullptr;
  std::uint64_t number = 0;
  std::size_t begin = 0;
  std::size_t count = 0;
  std::vector<Round> rounds;
  std::size_t round = 0;
  std::vector<MPI_Request> requests;  // receives first
  std::size_t open = 0;               // requests that have not completed
  std::vector<std::size_t> expected;  // bytes of each receive
  std::vector<std::byte*> received;   // of the round, in the order of its receives
  std::vector<std::byte> scratch;
  std::vector<std::byte> packed;  // the elements of all blocks, if they are not in the buffer
  std::vector<float> wide;        // the elements as f32, of halves
  bool in_wide = false;           // the operands are there
  bool has_wrong_data = false;    // of a node that calls something else

  Buffer& buffer() const { return running->operation->buffer; }
  std::byte* data() {
    if (buffer().data == nullptr) return packed.data();
    return static_cast<std::byte*>(buffer().data) + begin * size_of(buffer().type);
  }
  // Operands travel before they are reduced, results afterwards.
  bool moves_operands() const { return rounds[round].reduces || round == 0; }
  bool moves_wide() const { return in_wide && moves_operands(); }
  std::size_t element_bytes() const { return moves_wide() ? sizeof(float) : size_of(buffer().type); }
  std::byte* base() { return moves_wide() ? reinterpret_cast<std::byte*>(wide.data()) : data(); }
};

NodeExchange::NodeExchange(MPI_Comm lane, int node, int nodes, const NetworkCost& cost)
    : lane_(lane), node_(node), grid_(grid_of(nodes)), full_grid_(full_grid_of(nodes)), cost_(cost) {
  for (int of = 0; of < nodes; ++of) blocks_.push_back(static_cast<std::size_t>(block_of(full_grid_, of)));
}

NodeExchange::~NodeExchange() = default;

void NodeExchange::start(std::shared_ptr<NodeOperation> operation) {
  auto running = std::make_unique<Running>(std::move(operation), lane_, node_, grid_.nodes);
  const NodeOperation& started = *running->operation;
  if (started.post) {
    operations_.push_back(std::move(running));
    send_requests();
    return;
  }
  const Buffer& buffer = started.buffer;
  if (started.request.kind != OperationKind::all_reduce) running->blocks = blocks_.size();
  const std::size_t element = started.wide ? sizeof(float) : size_of(buffer.type);  // on the wire
  const NodeGrid& grid = started.request.kind == OperationKind::all_reduce ? grid_ : full_grid_;
  const ExchangePlan plan = plan_of(grid, buffer.count * element * running->blocks, cost_);
  running->form = plan.form;
  running->segment_count = std::max<std::size_t>(1, plan.segment_bytes / element / running->blocks);
  last_use_ = use_of(rounds_of(*running, std::min(running->segment_count, buffer.count)));
  operations_.push_back(std::move(running));
  send_requests();
}

// Sends the requests in the order of the operations, up to one that goes with its first segment.
void NodeExchange::send_requests() {
  for (const auto& running : operations_) {
    if (!running->check || running->check->is_sent()) continue;
    if (!running->operation->post && running->operation->buffer.count > 0) return;
    running->check->send();
  }
}

std::vector<Round> NodeExchange::rounds_of(const Running& running, std::size_t count) const {
  const OperationRequest& request = running.operation->request;
  if (request.kind == OperationKind::reduce_scatter)
    return reduce_scatter_schedule_of(full_grid_, node_, count);
  if (request.kind == OperationKind::all_gather) return all_gather_schedule_of(full_grid_, node_, count);
  return schedule_of(grid_, node_, count, running.form, request.type);
}

bool NodeExchange::advance() {
  bool moved = false;
  for (const auto& running : operations_) running->matched();
  test_requests();
  for (auto segment = active_.begin(); segment != active_.end();) {
    moved |= advance(*segment);
    if (segment->round < segment->rounds.size()) {
      ++segment;
      continue;
    }
    --segment->running->active;
    active_bytes_ -= segment->count * segment->running->blocks * size_of(segment->buffer().type);
    spare_.push_back({std::move(segment->scratch), std::move(segment->packed), std::move(segment->wide)});
    segment = active_.erase(segment);
  }
  // To poll between two messages takes longer than to send them together.
  while (start_segment()) {
    moved = true;
    if (active_bytes_ >= kBurstBytes) break;
  }
  moved |= advance_posted();
  const auto ended = [&](const auto& running) {
    if (running->operation->done) return true;
    if (running->operation->post || running->next < running->operation->buffer.count || running->active > 0 ||
        !running->matches) {
      return false;
    }
    running->operation->done = true;
    moved = true;
    return true;
  };
  std::erase_if(operations_, ended);
  return moved;
}

// The oldest of MPI's own operations.
bool NodeExchange::advance_posted() {
  const auto oldest = std::find_if(operations_.begin(), operations_.end(),
                                   [](const auto& running) { return running->operation->post != nullptr; });
  if (oldest == operations_.end() || !(*oldest)->matches) return false;
  Running& running = **oldest;
  const bool begins = !std::exchange(running.posted, true);
  if (begins) running.operation->post(running.requests);
  int done = 0;
  mpi::check(MPI_Testall(static_cast<int>(running.requests.size()), running.requests.data(), &done,
                         MPI_STATUSES_IGNORE),
             "MPI_Testall");
  if (done == 0) return begins;
  if (running.operation->finish) running.operation->finish(0, 0, nullptr);
  running.operation->done = true;
  return true;
}

// The oldest operation with elements that are in no segment yet.
NodeExchange::Running* NodeExchange::next_to_divide() {
  for (const auto& running : operations_) {
    if (running->next < running->operation->buffer.count) return running.get();
  }
  return nullptr;
}

bool NodeExchange::start_segment() {
  Running* running = next_to_divide();
  if (running == nullptr) return false;
  const NodeOperation& operation = *running->operation;
  const std::size_t count = std::min(running->segment_count, operation.buffer.count - running->next);
  const std::size_t elements = count * running->blocks;
  const std::size_t bytes = elements * size_of(operation.buffer.type);
  if (!active_.empty() && (active_bytes_ + bytes > kWindowBytes || active_.size() >= kWindowSegments))
    return false;
  Segment& segment = active_.emplace_back();
  segment.running = running;
  segment.number = next_segment_++;
  segment.begin = running->next;
  segment.count = count;
  segment.rounds = rounds_of(*running, count);
  if (!spare_.empty()) {
    segment.scratch = std::move(spare_.back().scratch);
    segment.packed = std::move(spare_.back().packed);
    segment.wide = std::move(spare_.back().wide);
    spare_.pop_back();
  }
  if (is_half(operation.buffer.type)) segment.wide.resize(std::max(segment.wide.size(), elements));
  if (operation.buffer.data == nullptr) segment.packed.resize(std::max(segment.packed.size(), bytes));
  segment.in_wide = operation.wide;
  running->next += count;
  ++running->active;
  active_bytes_ += bytes;
  float* const wide = operation.wide ? segment.wide.data() : nullptr;
  if (operation.request.kind == OperationKind::all_reduce) {
    const std::size_t size = size_of(operation.buffer.type);
    in_pieces(count, size, [&](std::size_t begin, std::size_t part) {
      operation.prepare(segment.begin + begin, part, segment.data() + begin * size,
                        wide == nullptr ? nullptr : wide + begin);
    });
  } else {
    operation.prepare(segment.begin, count, segment.data(), wide);  // puts blocks side by side
  }
  post(segment);
  return true;
}

void NodeExchange::post(Segment& segment) {
  const Round& round = segment.rounds[segment.round];
  const std::size_t element = segment.element_bytes();
  std::byte* base = segment.base();
  // The first data to and from the neighbours may travel with the request.
  RequestCheck* check = nullptr;
  if (segment.begin == 0 && segment.round == 0 && segment.running->check) check = &*segment.running->check;
  const auto rides = [&](const Round::Message& message, int neighbour) {
    return check != nullptr && round.reduces && message.peer == neighbour &&
           message.count * element <= RequestCheck::kMaxData;
  };
  segment.received.clear();
  segment.expected.clear();
  std::size_t total = 0;
  for (const auto& message : round.receives) total += aligned(message.count * element);
  segment.requests.clear();
  if (round.reduces) segment.scratch.resize(std::max(segment.scratch.size(), total));
  std::byte* next = segment.scratch.data();
  // Within a segment, the messages of two nodes arrive in their order.
  const int tag = kFirstTag + static_cast<int>(segment.number % kSegmentTags);
  for (const auto& message : round.receives) {
    const std::size_t bytes = message.count * element;
    if (check != nullptr && rides(message, check->before())) {
      segment.received.push_back(check->data());
      continue;
    }
    segment.received.push_back(round.reduces ? next : base + message.begin * element);
    segment.expected.push_back(bytes);
    if (round.reduces) next += aligned(bytes);
    mpi::check(MPI_Irecv(segment.received.back(), static_cast<int>(bytes), MPI_BYTE, message.peer, tag, lane_,
                         &segment.requests.emplace_back(MPI_REQUEST_NULL)),
               "MPI_Irecv");
  }
  if (check != nullptr) {
    const auto first = std::find_if(round.sends.begin(), round.sends.end(),
                                    [&](const auto& message) { return rides(message, check->next()); });
    check->send(first == round.sends.end()
                    ? std::span<const std::byte>()
                    : std::span<const std::byte>(base + first->begin * element, first->count * element));
  }
  for (const auto& message : round.sends) {
    if (check != nullptr && rides(message, check->next())) continue;
    mpi::check(MPI_Isend(base + message.begin * element, static_cast<int>(message.count * element), MPI_BYTE,
                         message.peer, tag, lane_, &segment.requests.emplace_back(MPI_REQUEST_NULL)),
               "MPI_Isend");
  }
  segment.open = segment.requests.size();
  if (check != nullptr) send_requests();
}

// Tests the requests of all segments in one call: each call of MPI polls its sockets.
void NodeExchange::test_requests() {
  tested_.clear();
  tested_in_.clear();
  for (Segment& segment : active_) {
    for (std::size_t i = 0; i < segment.requests.size(); ++i) {
      if (segment.requests[i] == MPI_REQUEST_NULL) continue;
      tested_.push_back(segment.requests[i]);
      tested_in_.emplace_back(&segment, i);
    }
  }
  if (tested_.empty()) return;
  completed_.resize(tested_.size());
  statuses_.resize(tested_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(tested_.size()), tested_.data(), &count, completed_.data(),
                                statuses_.data());
  if (code != MPI_ERR_IN_STATUS) mpi::check(code, "MPI_Testsome");
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto [segment, index] = tested_in_[static_cast<std::size_t>(completed_[i])];
    segment->requests[index] = MPI_REQUEST_NULL;
    --segment->open;
    const int error = code == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS;
    int kind = MPI_SUCCESS;
    MPI_Error_class(error, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      segment->has_wrong_data = true;
    } else if (kind != MPI_SUCCESS) {
      mpi::check(error, "MPI_Testsome");
    } else if (index < segment->expected.size()) {
      int bytes = 0;
      mpi::check(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_count");
      if (static_cast<std::size_t>(bytes) != segment->expected[index]) segment->has_wrong_data = true;
    }
  }
}

bool NodeExchange::advance(Segment& segment) {
  bool moved = false;
  // First the requests: data of another size completes no receive.
  while (segment.running->matches && segment.open == 0 && !segment.has_wrong_data) {
    moved = true;
    const Round& round = segment.rounds[segment.round];
    if (round.reduces) {
      const bool last =
          segment.round + 1 == segment.rounds.size() || !segment.rounds[segment.round + 1].reduces;
      reduce(segment, round, last);
    }
    if (++segment.round == segment.rounds.size()) {
      segment.running->operation->finish(segment.begin, segment.count, segment.data());
      break;
    }
    post(segment);
  }
  return moved;
}

// MPI moves data only while it is called, so it is called between the pieces of a long sum.
void NodeExchange::in_pieces(std::size_t count, std::size_t element_bytes,
                             const std::function<void(std::size_t begin, std::size_t count)>& work) const {
  const std::size_t piece = kUncalledBytes / element_bytes;
  for (std::size_t begin = 0; begin < count; begin += piece) {
    work(begin, std::min(piece, count - begin));
    if (begin + piece >= count) return;
    int arrived = 0;
    mpi::check(MPI_Iprobe(MPI_ANY_SOURCE, kUnusedTag, lane_, &arrived, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }
}

// Adds up the received parts and this node's own, in the order of the nodes' digits.
void NodeExchange::reduce(Segment& segment, const Round& round, bool last) {
  if (round.count == 0) return;
  const DataType type = segment.buffer().type;
  std::vector<const std::byte*> operands(segment.received.begin(), segment.received.end());
  const std::byte* own = segment.base() + round.begin * segment.element_bytes();
  operands.insert(operands.begin() + static_cast<std::ptrdiff_t>(round.before), own);
  const ScaledOp& scaled = segment.running->operation->scaled;
  const ScaledOp unscaled{.op = scaled.op, .scale = std::nullopt};
  in_pieces(round.count, segment.element_bytes(), [&](std::size_t begin, std::size_t count) {
    std::vector<const void*> inputs;
    for (const std::byte* operand : operands) inputs.push_back(operand + begin * segment.element_bytes());
    float* wide = segment.wide.data() + round.begin + begin;
    std::byte* result = segment.data() + (round.begin + begin) * size_of(type);
    if (segment.in_wide) {
      comm::reduce(inputs, wide, count, DataType::f32, last ? scaled : unscaled);
      if (last) narrow(wide, result, count, type);
    } else if (is_half(type) && !last) {
      reduce_wide(inputs, wide, count, type, scaled.op);
    } else {
      comm::reduce(inputs, result, count, type, last ? scaled : unscaled);
    }
  });
  segment.in_wide = is_half(type) && !last;
}

}  // namespace lockstep::comm::cpu
