#include "runtime/train/optimizer_state.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "common/error.h"
#include "runtime/comm/alike.h"

namespace lockstep {
namespace {

using Dictionary = c10::impl::GenericDict;

Dictionary dictionary() {
  return Dictionary(c10::StringType::get(), c10::AnyType::get());
}

std::string dump(const Dictionary& dictionary) {
  const auto bytes = torch::pickle_save(dictionary);
  return {bytes.begin(), bytes.end()};
}

torch::Tensor to_tensor(const std::string& bytes) {
  auto tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::copy(bytes.begin(), bytes.end(), tensor.data_ptr<std::uint8_t>());
  return tensor;
}

std::string to_string(const torch::Tensor& tensor) {
  const auto bytes = tensor.contiguous();
  return {reinterpret_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.nbytes())};
}

}  // namespace

namespace train {
namespace {

// Serialises pieces for sending.
std::string pack(const std::vector<StatePiece>& pieces) {
  auto all = dictionary();
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    const auto& [span, state] = pieces[index];
    auto entries = dictionary();
    for (const auto& [key, value] : state) entries.insert(key, value);
    entries.insert(
        "span", std::vector<std::int64_t>{static_cast<std::int64_t>(span.parameter), span.begin, span.end});
    all.insert(std::to_string(index), entries);
  }
  return dump(all);
}

std::vector<StatePiece> unpack(const std::string& bytes) {
  std::vector<StatePiece> pieces;
  for (const auto& entry : torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict()) {
    StatePiece& piece = pieces.emplace_back();
    for (const auto& value : entry.value().toGenericDict()) {
      if (value.key().toStringRef() == "span") {
        const auto span = value.value().toIntVector();
        piece.span = {static_cast<std::size_t>(span.at(0)), span.at(1), span.at(2)};
      } else {
        piece.state[value.key().toStringRef()] = value.value();
      }
    }
  }
  return pieces;
}

bool is_elementwise(const c10::IValue& value, std::int64_t elements) {
  return value.isTensor() && value.toTensor().dim() == 1 && value.toTensor().numel() == elements;
}

// Copies the elements that both pieces have from `from` to `into`.
void merge(const StatePiece& from, StatePiece& into) {
  if (from.span.parameter != into.span.parameter) return;
  const std::int64_t begin = std::max(from.span.begin, into.span.begin);
  const std::int64_t end = std::min(from.span.end, into.span.end);
  if (begin >= end) return;
  for (const auto& [key, value] : from.state) {
    if (!is_elementwise(value, from.span.size())) {
      into.state[key] = value;
      continue;
    }
    const auto& tensor = value.toTensor();
    auto& target = into.state[key];
    if (!target.isTensor()) target = torch::zeros({into.span.size()}, tensor.options());
    target.toTensor()
        .slice(0, begin - into.span.begin, end - into.span.begin)
        .copy_(tensor.slice(0, begin - from.span.begin, end - from.span.begin));
  }
}

}  // namespace

std::vector<StatePiece> redistribute(comm::Communicator& communicator, const std::vector<StatePiece>& mine,
                                     const std::vector<Span>& wanted) {
  const torch::NoGradGuard no_grad;
  std::vector<StatePiece> result;
  result.reserve(wanted.size());
  for (const Span& span : wanted) result.push_back({span, {}});
  // One rank after the other, so that no rank needs memory for all.
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const bool is_mine = rank == communicator.rank();
    const std::string bytes =
        comm::broadcast_text(communicator, is_mine ? pack(mine) : std::string(), rank, "optimizer state");
    const auto pieces = is_mine ? mine : unpack(bytes);
    for (const StatePiece& piece : pieces) {
      for (StatePiece& into : result) merge(piece, into);
    }
  }
  return result;
}

StatePiece cut(const ParameterState& whole, const torch::Tensor& like, const Span& span) {
  const torch::NoGradGuard no_grad;
  StatePiece piece{span, {}};
  for (const auto& [key, value] : whole) {
    if (!value.isTensor() || value.toTensor().sizes() != like.sizes()) {
      piece.state[key] = value;
      continue;
    }
    auto in_memory_order = torch::empty_strided(like.sizes(), like.strides(), value.toTensor().options());
    in_memory_order.copy_(value.toTensor());
    piece.state[key] = in_memory_order.as_strided({span.size()}, {1}, span.begin).clone();
  }
  return piece;
}

ParameterState in_shape_of(const torch::Tensor& like, const StatePiece& piece) {
  const torch::NoGradGuard no_grad;
  ParameterState whole;
  for (const auto& [key, value] : piece.state) {
    whole[key] = is_elementwise(value, piece.span.size())
                     ? c10::IValue(value.toTensor().as_strided(like.sizes(), like.strides()).contiguous())
                     : value;
  }
  return whole;
}

namespace {

torch::serialize::InputArchive reread(torch::serialize::OutputArchive& out) {
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  return in;
}

template <typename State>
ParameterState view_adam(const State& state) {
  return {{"step", state.step()},
          {"exp_avg", state.exp_avg()},
          {"exp_avg_sq", state.exp_avg_sq()},
          {"max_exp_avg_sq", state.max_exp_avg_sq()}};
}

// The state of LibTorch's own optimizers, sharing the tensors.
std::optional<ParameterState> view_state(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (const auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) return view_adam(*adamw);
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) return view_adam(*adam);
  if (const auto* sgd = dynamic_cast<const SGDParamState*>(&state))
    return ParameterState{{"momentum_buffer", sgd->momentum_buffer()}};
  if (const auto* rmsprop = dynamic_cast<const RMSpropParamState*>(&state)) {
    return ParameterState{{"step", rmsprop->step()},
                          {"square_avg", rmsprop->square_avg()},
                          {"momentum_buffer", rmsprop->momentum_buffer()},
                          {"grad_avg", rmsprop->grad_avg()}};
  }
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state))
    return ParameterState{{"step", adagrad->step()}, {"sum", adagrad->sum()}};
  return std::nullopt;
}

}  // namespace

ParameterState read_state(const torch::optim::OptimizerParamState& state) {
  if (auto view = view_state(state)) {
    std::erase_if(*view, [](const auto& entry) {
      return entry.second.isTensor() && !entry.second.toTensor().defined();
    });
    return *std::move(view);
  }
  torch::serialize::OutputArchive out;
  state.serialize(out);
  torch::serialize::InputArchive in = reread(out);
  ParameterState result;
  for (const auto& key : in.keys()) {
    c10::IValue value;
    in.read(key, value);
    if (value.isTensor() && !value.toTensor().defined()) continue;
    result[key] = std::move(value);
  }
  return result;
}

void write_state(const ParameterState& from, torch::optim::OptimizerParamState& into) {
  torch::serialize::OutputArchive out;
  for (const auto& [key, value] : from) out.write(key, value);
  torch::serialize::InputArchive in = reread(out);
  into.serialize(in);
}

torch::Tensor read_options(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive out;
  options.serialize(out);
  std::stringstream bytes;
  out.save_to(bytes);
  return to_tensor(bytes.str());
}

void write_options(const torch::Tensor& from, torch::optim::OptimizerOptions& into) {
  std::stringstream bytes(to_string(from));
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  into.serialize(in);
}

}  // namespace train
}  // namespace lockstep
