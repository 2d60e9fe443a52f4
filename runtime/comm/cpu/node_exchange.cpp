#include "runtime/comm/cpu/node_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::cpu {
namespace {

constexpr int kRequestTag = 1;
constexpr int kFirstTag = 16;
constexpr std::uint64_t kSegmentTags = 512;  // more than can be active
constexpr int kUnusedTag = kFirstTag - 1;

constexpr std::size_t kUncalledBytes = std::size_t{128} << 10;  // between two calls of MPI
constexpr std::size_t kBurstBytes = std::size_t{256} << 10;     // sent without polling

constexpr std::size_t kAlignment = 64;
constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// Compares what this node calls with what the node before calls, by one message to the next node: if all neighbours agree,
// all nodes agree. A collective that is not the same everywhere could hang on one rank and succeed on another. The first
// data for the next node travels in the same message, if it is short: over TCP a second message costs as much as the first.
class RequestCheck {
 public:
  RequestCheck(MPI_Comm lane, int node, int nodes, const OperationRequest& request, std::string_view label)
      : next((node + 1) % nodes), before((node + nodes - 1) % nodes), lane_(lane) {
    mine_.request = request;
    mine_.rank = mpi::world_rank();
    mine_.label[label.copy(mine_.label.data(), mine_.label.size() - 1)] = 0;
  }

  /// Sends the request to the next node of `lane`, once, after those of the operations before.
  void send(std::span<const std::byte> data = {}) {
    state_ = State::sent;
    std::memcpy(sent_.get(), &mine_, sizeof mine_);
    if (!data.empty()) std::memcpy(sent_.get() + kDataBegin, data.data(), data.size());
    mpi::check(MPI_Irecv(received_.get(), static_cast<int>(kDataBegin + kMaxRiding), MPI_BYTE, before,
                         kRequestTag, lane_, &requests_[0]),
               "MPI_Irecv");
    mpi::check(MPI_Isend(sent_.get(), static_cast<int>(kDataBegin + data.size()), MPI_BYTE, next, kRequestTag,
                         lane_, &requests_[1]),
               "MPI_Isend");
  }
  bool is_sent() const { return state_ != State::waiting; }

  /// Whether the node before calls the same; false as long as its message is not there. Ends the job, with a line
  /// that names both requests, if it calls something else.
  bool matched() {
    // Compares as soon as the other request is here, because the next node may be late.
    if (state_ == State::sent && ended(requests_[0])) {
      compare();
      state_ = State::equal;
    }
    if (state_ == State::equal && ended(requests_[1])) state_ = State::matched;
    return state_ == State::matched;
  }

  /// The data that came with the message, after matched().
  std::byte* data() const { return received_.get() + kDataBegin; }

  const int next;
  const int before;

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
  static_assert(std::is_trivially_copyable_v<Message>);

  static bool ended(MPI_Request& request) {
    int done = 0;
    mpi::check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  void compare() const {
    Message theirs;
    std::memcpy(&theirs, received_.get(), sizeof theirs);
    if (theirs.request == mine_.request) return;
    end_job_once(fmt::format(
        "ranks of different nodes call different operations: rank {} calls {}, but rank {} calls {}; every rank must call the same operations in the same order (docs/users/ddp.md)",
        mine_.rank, describe(mine_.request, mine_.label.data()), theirs.rank,
        describe(theirs.request, theirs.label.data())));
  }

  static constexpr std::size_t kDataBegin = (sizeof(Message) + 63) / 64 * 64;

  MPI_Comm lane_;
  Message mine_;
  std::unique_ptr<std::byte[]> sent_ = std::make_unique_for_overwrite<std::byte[]>(kDataBegin + kMaxRiding);
  std::unique_ptr<std::byte[]> received_ =
      std::make_unique_for_overwrite<std::byte[]>(kDataBegin + kMaxRiding);
  std::array<MPI_Request, 2> requests_{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  State state_ = State::waiting;
};

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
  // Within a segment, the messages of two nodes arrive in their order.
  int tag() const { return kFirstTag + static_cast<int>(number % kSegmentTags); }
  // Whether the message may travel with the request to or from that neighbour.
  bool rides(const Round::Message& message, int neighbour) const {
    return rounds[round].reduces && message.peer == neighbour &&
           message.count * element_bytes() <= kMaxRiding;
  }
};

NodeExchange::NodeExchange(MPI_Comm lane, int node, int nodes, const NetworkCost& cost)
    : lane_(lane), node_(node), grid_(grid_of(nodes)), full_grid_(full_grid_of(nodes)), cost_(cost) {
  for (int of = 0; of < nodes; ++of) blocks_.push_back(static_cast<std::size_t>(block_of(full_grid_, of)));
}

NodeExchange::~NodeExchange() = default;

void NodeExchange::start(std::shared_ptr<NodeOperation> operation) {
  auto running = std::make_unique<Running>(std::move(operation), lane_, node_, grid_.nodes);
  const NodeOperation& started = *running->operation;
  if (!started.post) {
    const bool reduces_all = started.request.kind == OperationKind::all_reduce;
    if (!reduces_all) running->blocks = blocks_.size();
    const std::size_t element = started.wide ? sizeof(float) : size_of(started.buffer.type);  // on the wire
    const ExchangePlan plan =
        plan_of(reduces_all ? grid_ : full_grid_, started.buffer.count * element * running->blocks, cost_);
    running->form = plan.form;
    running->segment_count = std::max<std::size_t>(1, plan.segment_bytes / element / running->blocks);
    last_use_ = use_of(rounds_of(*running, std::min(running->segment_count, started.buffer.count)));
  }
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
  if (running.operation->finish) running.operation->finish();
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
  take_operands(segment);
  post(segment);
  return true;
}

// Starts the messages of the segment's round.
void NodeExchange::post(Segment& segment) {
  segment.received.clear();
  segment.expected.clear();
  segment.requests.clear();
  // The first data of an operation to and from the neighbours may travel with the request.
  const bool first = segment.begin == 0 && segment.round == 0 && segment.running->check;
  RequestCheck* const check = first ? &*segment.running->check : nullptr;
  post_receives(segment, check);
  post_sends(segment, check);
  segment.open = segment.requests.size();
  if (check != nullptr) send_requests();
}

void NodeExchange::post_receives(Segment& segment, const RequestCheck* check) {
  const Round& round = segment.rounds[segment.round];
  const std::size_t element = segment.element_bytes();
  std::size_t total = 0;
  for (const auto& message : round.receives) total += aligned(message.count * element);
  if (round.reduces) segment.scratch.resize(std::max(segment.scratch.size(), total));
  std::byte* next = segment.scratch.data();
  for (const auto& message : round.receives) {
    const std::size_t bytes = message.count * element;
    if (check != nullptr && segment.rides(message, check->before)) {
      segment.received.push_back(check->data());
      continue;
    }
    segment.received.push_back(round.reduces ? next : segment.base() + message.begin * element);
    segment.expected.push_back(bytes);
    if (round.reduces) next += aligned(bytes);
    mpi::check(MPI_Irecv(segment.received.back(), static_cast<int>(bytes), MPI_BYTE, message.peer,
                         segment.tag(), lane_, &segment.requests.emplace_back(MPI_REQUEST_NULL)),
               "MPI_Irecv");
  }
}

// With the request of the operation, if this is its first round.
void NodeExchange::post_sends(Segment& segment, RequestCheck* check) {
  const std::size_t element = segment.element_bytes();
  const auto data_of = [&](const Round::Message& message) {
    return std::span<const std::byte>(segment.base() + message.begin * element, message.count * element);
  };
  const auto& sends = segment.rounds[segment.round].sends;
  const auto rides = [&](const Round::Message& message) {
    return check != nullptr && segment.rides(message, check->next);
  };
  if (check != nullptr) {
    const auto first = std::find_if(sends.begin(), sends.end(), rides);
    check->send(first == sends.end() ? std::span<const std::byte>() : data_of(*first));
  }
  for (const auto& message : sends) {
    if (rides(message)) continue;
    const auto data = data_of(message);
    mpi::check(MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, message.peer, segment.tag(),
                         lane_, &segment.requests.emplace_back(MPI_REQUEST_NULL)),
               "MPI_Isend");
  }
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
      give_results(segment);
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

// Sums the elements of this node's ranks.
void NodeExchange::take_operands(Segment& segment) const {
  const NodeOperation& operation = *segment.running->operation;
  const DataType type = segment.buffer().type;
  const std::size_t size = size_of(type);
  if (!operation.wide && operation.operands.size() == 1 && operation.operands[0] == segment.buffer().data)
    return;  // they are where they travel from
  in_pieces(segment.count, size, [&](std::size_t begin, std::size_t count) {
    for (const auto& block : operation.sent) {
      const std::size_t first = block.place * segment.count + begin;
      std::byte* const sum = segment.data() + first * size;
      std::vector<const void*> inputs;
      for (const std::byte* memory : operation.operands)
        inputs.push_back(memory + block.offset + (segment.begin + begin) * size);
      if (operation.wide) {
        reduce_wide(inputs, segment.wide.data() + first, count, type, operation.scaled.op);
      } else if (inputs.size() > 1) {
        comm::reduce(inputs, sum, count, type, {.op = operation.scaled.op, .scale = std::nullopt});
      } else if (inputs[0] != sum) {
        std::memcpy(sum, inputs[0], count * size);
      }
    }
  });
}

// Copies the result to this node's ranks.
void NodeExchange::give_results(Segment& segment) {
  const NodeOperation& operation = *segment.running->operation;
  const std::size_t size = size_of(segment.buffer().type);
  for (const auto& block : operation.received) {
    const std::byte* const from = segment.data() + block.place * segment.count * size;
    for (std::byte* memory : operation.results) {
      std::byte* const into = memory + block.offset + segment.begin * size;
      if (into != from) std::memcpy(into, from, segment.count * size);
    }
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
