#include "runtime/data/loader_state.h"

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace lockstep::data {
namespace {

constexpr int kVersion = 1;

nlohmann::json to_json(const EpochPart& part) {
  const PlanOptions& options = part.options;
  return {{"ranks", options.ranks},
          {"cap", options.cap},
          {"accumulate", options.accumulate},
          {"cost", {options.cost.a, options.cost.b}},
          {"randomness", options.randomness},
          {"padded", options.padded},
          {"micro_batches", part.micro_batches}};
}

EpochPart part_from_json(const nlohmann::json& json, const LoaderState& state) {
  EpochPart part;
  part.options.ranks = json.at("ranks");
  part.options.cap = json.at("cap");
  part.options.accumulate = json.at("accumulate");
  part.options.cost = {json.at("cost").at(0), json.at("cost").at(1)};
  part.options.randomness = json.at("randomness");
  part.options.padded = json.at("padded");
  part.options.seed = state.seed;
  part.options.epoch = state.epoch;
  part.options.order = state.order;
  part.micro_batches = json.at("micro_batches");
  return part;
}

// Samples of an epoch that are still to be planned, in the data set's order.
struct Rest {
  std::vector<SampleId> ids;
  std::vector<std::uint32_t> lengths;
};

Plan plan_of(const Rest& rest, const PlanOptions& options, std::size_t samples,
             const std::string& fingerprint) {
  const Plan local = make_plan(rest.lengths, options, fingerprint);
  Plan plan(options, samples, fingerprint);
  std::vector<SampleId> ids;
  for (std::size_t step = 0; step < local.steps(); ++step) {
    for (int rank = 0; rank < options.ranks; ++rank) {
      for (int micro_batch = 0; micro_batch < options.accumulate; ++micro_batch) {
        ids.clear();
        for (const SampleId id : local.micro_batch(step, rank, micro_batch)) ids.push_back(rest.ids[id]);
        plan.append(ids);
      }
    }
  }
  return plan;
}

// Leaves out what the part has used.
void remove_used(Rest& rest, const EpochPart& part, const std::string& fingerprint) {
  const Plan plan = make_plan(rest.lengths, part.options, fingerprint);
  const auto accumulate = static_cast<std::uint64_t>(part.options.accumulate);
  if (part.micro_batches > plan.micro_batches_per_rank()) {
    fail("the loader's state has {} micro-batches of an epoch that has {}: the data are not those it is of",
         part.micro_batches, plan.micro_batches_per_rank());
  }
  std::vector<bool> used(rest.ids.size());
  for (std::uint64_t i = 0; i < part.micro_batches; ++i) {
    for (int rank = 0; rank < part.options.ranks; ++rank) {
      for (const SampleId id : plan.micro_batch(i / accumulate, rank, static_cast<int>(i % accumulate))) {
        used[id] = true;
      }
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    rest.ids[kept] = rest.ids[i];
    rest.lengths[kept++] = rest.lengths[i];
  }
  rest.ids.resize(kept);
  rest.lengths.resize(kept);
}

}  // namespace

bool same_geometry(const PlanOptions& x, const PlanOptions& y) {
  return x.ranks == y.ranks && x.cap == y.cap && x.accumulate == y.accumulate && x.cost.a == y.cost.a &&
         x.cost.b == y.cost.b && x.randomness == y.randomness && x.padded == y.padded;
}

std::string to_text(const LoaderState& state) {
  nlohmann::json parts = nlohmann::json::array();
  for (const EpochPart& part : state.parts) parts.push_back(to_json(part));
  return nlohmann::json{
      {"version", kVersion}, {"data", state.data},   {"sequential", state.order == Order::sequential},
      {"seed", state.seed},  {"epoch", state.epoch}, {"parts", parts}}
      .dump();
}

LoaderState state_from_text(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("version") != kVersion) {
      fail("the loader's state has version {}, and this program reads {}", json.at("version").dump(),
           kVersion);
    }
    LoaderState state;
    state.data = json.at("data");
    state.order = json.at("sequential") ? Order::sequential : Order::shuffled;
    state.seed = json.at("seed");
    state.epoch = json.at("epoch");
    for (const auto& part : json.at("parts")) state.parts.push_back(part_from_json(part, state));
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("the loader's state cannot be read: {}", error.what());
  }
}

Plan plan_rest(std::span<const std::uint32_t> lengths, const std::string& fingerprint,
               const PlanOptions& options, std::span<const EpochPart> parts) {
  if (parts.empty()) return make_plan(lengths, options, fingerprint);
  Rest rest;
  rest.lengths.assign(lengths.begin(), lengths.end());
  for (std::size_t id = 0; id < lengths.size(); ++id) rest.ids.push_back(id);
  for (const EpochPart& part : parts) remove_used(rest, part, fingerprint);
  return plan_of(rest, options, lengths.size(), fingerprint);
}

}  // namespace lockstep::data
