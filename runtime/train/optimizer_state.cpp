#include "runtime/train/optimizer_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>

#include "common/error.h"
#include "runtime/torch_archive.h"

namespace lockstep {
namespace train {
namespace {

bool is_elementwise(const c10::IValue& value, std::int64_t elements) {
  return value.isTensor() && value.toTensor().dim() == 1 && value.toTensor().numel() == elements;
}

/// An entry of a parameter's state, the same on all ranks: a number, or the type of a tensor.
struct Entry {
  enum Kind : std::int64_t { none, integer, truth, real, tensor };  // a tensor's type is added
  std::int64_t kind = none;
  std::int64_t value = std::numeric_limits<std::int64_t>::min();

  bool is_tensor() const { return kind >= tensor; }
  torch::ScalarType type() const { return static_cast<torch::ScalarType>(kind - tensor); }
};

Entry entry_of(const c10::IValue& value, const std::string& key, std::int64_t elements) {
  if (value.isInt()) return {Entry::integer, value.toInt()};
  if (value.isBool()) return {Entry::truth, value.toBool() ? 1 : 0};
  if (value.isDouble()) return {Entry::real, std::bit_cast<std::int64_t>(value.toDouble())};
  if (!is_elementwise(value, elements))
    fail_usage("DistributedOptimizer: the state's '{}' is neither a number nor of the parameter's size", key);
  return {Entry::tensor + static_cast<std::int64_t>(value.toTensor().scalar_type()), 0};
}

c10::IValue number_of(const Entry& entry) {
  if (entry.kind == Entry::truth) return entry.value != 0;
  if (entry.kind == Entry::real) return std::bit_cast<double>(entry.value);
  return entry.value;
}

/// This rank's pieces, by parameter.
using PieceOf = std::map<std::size_t, const StatePiece*>;

/// The entries of all parameters, by parameter and in the order of the keys. A rank knows those of its own pieces.
using Entries = std::map<std::size_t, std::vector<Entry>>;

Entries agree_on_entries(comm::Communicator& communicator, const Partition& partition, const PieceOf& mine,
                         const std::vector<std::string>& keys) {
  static_assert(sizeof(Entry) == 2 * sizeof(std::int64_t));
  std::vector<Entry> all;
  for (const BucketLayout& bucket : partition.buckets()) {
    for (const BucketLayout::Member& member : bucket.members) {
      const auto piece = mine.find(member.parameter);
      for (const std::string& key : keys) {
        all.emplace_back();
        if (piece == mine.end()) continue;
        const auto found = piece->second->state.find(key);
        if (found != piece->second->state.end())
          all.back() = entry_of(found->second, key, piece->second->span.size());
      }
    }
  }
  communicator
      .all_reduce({all.data(), 2 * all.size(), comm::DataType::i64}, "the entries of the optimizer's state",
                  {.op = comm::ReduceOp::max})
      ->wait();
  Entries entries;
  auto next = all.begin();
  for (const BucketLayout& bucket : partition.buckets()) {
    for (const BucketLayout::Member& member : bucket.members) {
      entries[member.parameter].assign(next, next + static_cast<std::ptrdiff_t>(keys.size()));
      next += static_cast<std::ptrdiff_t>(keys.size());
    }
  }
  return entries;
}

// Calls `part` with span, key and bytes for each part of a message, in its order.
template <typename Part>
void for_each_part(const PeerSpans& peer, const Entries& entries, const Part& part) {
  for (const Span& span : peer.spans) {
    const std::vector<Entry>& of_parameter = entries.at(span.parameter);
    for (std::size_t key = 0; key < of_parameter.size(); ++key) {
      if (!of_parameter[key].is_tensor()) continue;
      part(span, key, static_cast<std::size_t>(span.size()) * c10::elementSize(of_parameter[key].type()));
    }
  }
}

std::size_t bytes_of(const PeerSpans& peer, const Entries& entries) {
  std::size_t bytes = 0;
  for_each_part(peer, entries,
                [&](const Span& /*span*/, std::size_t /*key*/, std::size_t size) { bytes += size; });
  return bytes;
}

// The span's elements in a tensor of the piece.
std::byte* place_in(const torch::Tensor& tensor, const StatePiece& piece, const Span& span) {
  return static_cast<std::byte*>(tensor.data_ptr()) +
         static_cast<std::size_t>(span.begin - piece.span.begin) * tensor.element_size();
}

}  // namespace

std::vector<StatePiece> redistribute(comm::Communicator& communicator, const Partition& from,
                                     const std::vector<StatePiece>& mine, const Partition& to,
                                     const std::vector<std::string>& keys) {
  const torch::NoGradGuard no_grad;
  std::vector<StatePiece> result;
  for (const Span& span : to.spans_of(communicator.rank())) result.push_back({span, {}});
  PieceOf pieces;
  for (const StatePiece& piece : mine) pieces[piece.span.parameter] = &piece;
  const auto spans = from.spans_of(communicator.rank());
  std::uint8_t some = std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
    const auto piece = pieces.find(span.parameter);
    return piece != pieces.end() && !piece->second->state.empty();
  });
  communicator
      .all_reduce({&some, 1, comm::DataType::u8}, "whether there is optimizer state",
                  {.op = comm::ReduceOp::max})
      ->wait();
  if (some == 0) return result;

  const Entries entries = agree_on_entries(communicator, from, pieces, keys);
  std::map<std::size_t, StatePiece*> into;
  for (StatePiece& piece : result) {
    into[piece.span.parameter] = &piece;
    const std::vector<Entry>& of_parameter = entries.at(piece.span.parameter);
    for (std::size_t key = 0; key < keys.size(); ++key) {
      const Entry& entry = of_parameter[key];
      if (entry.is_tensor()) {
        piece.state[keys[key]] = torch::empty({piece.span.size()}, entry.type());
      } else if (entry.kind != Entry::none) {
        piece.state[keys[key]] = number_of(entry);
      }
    }
  }
  const Moves moves(from, to, communicator.rank());
  std::deque<std::vector<std::byte>> memory;
  std::vector<comm::PeerMessage> sends;
  std::vector<comm::PeerMessage> receives;
  std::byte* own = nullptr;  // the message to itself
  for (const PeerSpans& peer : moves.sends) {
    auto& bytes = memory.emplace_back(bytes_of(peer, entries));
    std::byte* at = bytes.data();
    for_each_part(peer, entries, [&](const Span& span, std::size_t key, std::size_t size) {
      const auto piece = pieces.find(span.parameter);
      if (piece != pieces.end()) {
        const auto found = piece->second->state.find(keys[key]);
        if (found != piece->second->state.end())
          std::memcpy(at, place_in(found->second.toTensor(), *piece->second, span), size);
      }
      at += size;
    });
    if (peer.peer == communicator.rank()) {
      own = bytes.data();
    } else {
      sends.push_back({peer.peer, bytes.data(), bytes.size()});
    }
  }
  for (const PeerSpans& peer : moves.receives) {
    if (peer.peer == communicator.rank()) continue;
    auto& bytes = memory.emplace_back(bytes_of(peer, entries));
    receives.push_back({peer.peer, bytes.data(), bytes.size()});
  }
  communicator.exchange(sends, receives, "optimizer state")->wait();
  auto received = receives.begin();
  for (const PeerSpans& peer : moves.receives) {
    const std::byte* at =
        peer.peer == communicator.rank() ? own : static_cast<const std::byte*>((received++)->data);
    for_each_part(peer, entries, [&](const Span& span, std::size_t key, std::size_t size) {
      const StatePiece& piece = *into.at(span.parameter);
      std::memcpy(place_in(piece.state.at(keys[key]).toTensor(), piece, span), at, size);
      at += size;
    });
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

// Also the tensors that are not defined.
ParameterState entries_of(const torch::optim::OptimizerParamState& state) {
  if (auto view = view_state(state)) return *std::move(view);
  torch::serialize::OutputArchive out;
  state.serialize(out);
  torch::serialize::InputArchive in = archive_from_bytes(archive_to_bytes(out));
  ParameterState result;
  for (const auto& key : in.keys()) in.read(key, result[key]);
  return result;
}

}  // namespace

ParameterState read_state(const torch::optim::OptimizerParamState& state) {
  ParameterState result = entries_of(state);
  std::erase_if(result, [](const auto& entry) {
    return entry.second.isTensor() && !entry.second.toTensor().defined();
  });
  return result;
}

std::vector<std::string> state_keys(const torch::optim::OptimizerParamState& empty) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : entries_of(empty)) keys.push_back(key);
  return keys;
}

void write_state(const ParameterState& from, torch::optim::OptimizerParamState& into) {
  torch::serialize::OutputArchive out;
  for (const auto& [key, value] : from) out.write(key, value);
  torch::serialize::InputArchive in = archive_from_bytes(archive_to_bytes(out));
  into.serialize(in);
}

torch::Tensor read_options(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive out;
  options.serialize(out);
  return archive_to_bytes(out);
}

void write_options(const torch::Tensor& from, torch::optim::OptimizerOptions& into) {
  torch::serialize::InputArchive in = archive_from_bytes(from);
  into.serialize(in);
}

}  // namespace train
}  // namespace lockstep
