#include "runtime/data/plan/plan_state.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/error.h"

namespace lockstep::data {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kDigits = "0123456789abcdef";

// Four bits a digit, the first bit the least.
std::string hex_of(const std::vector<bool>& bits) {
  std::string hex((bits.size() + 3) / 4, '0');
  for (std::size_t i = 0; i < hex.size(); ++i) {
    unsigned digit = 0;
    for (std::size_t bit = 0; bit < 4 && 4 * i + bit < bits.size(); ++bit) {
      digit |= (bits[4 * i + bit] ? 1U : 0U) << bit;
    }
    hex[i] = kDigits[digit];
  }
  return hex;
}

std::vector<bool> bits_of(const std::string& hex, const char* name) {
  std::vector<bool> bits;
  bits.reserve(4 * hex.size());
  for (const char character : hex) {
    const std::size_t digit = kDigits.find(character);
    if (digit == std::string_view::npos) fail("the planner's state: \"{}\" is not hexadecimal", name);
    for (unsigned bit = 0; bit < 4; ++bit) bits.push_back(((digit >> bit) & 1U) != 0);
  }
  return bits;
}

template <typename T>
T member(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) fail("the planner's state: there is no \"{}\"", name);
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    fail("the planner's state: \"{}\" is {}, not what belongs there", name, found->dump().substr(0, 60));
  }
}

}  // namespace

void to_json(nlohmann::json& json, const PlanState& state) {
  const PlanOptions& geometry = state.geometry;
  json = {{"version", kVersion},
          {"data", state.data},
          {"order", state.order},
          {"geometry",
           {{"ranks", geometry.ranks},
            {"accumulate", geometry.accumulate},
            {"cap", geometry.cap},
            {"cost", {geometry.cost.a, geometry.cost.b}},
            {"randomness", geometry.randomness},
            {"padded", geometry.padded},
            {"pad_multiple", geometry.pad_multiple},
            {"speeds", geometry.speeds}}},
          {"seed", geometry.seed},
          {"epoch", geometry.epoch},
          {"sequential", geometry.order == Order::sequential},
          {"too_long", static_cast<int>(geometry.too_long)},
          {"tail", static_cast<int>(geometry.tail)},
          {"block", state.block},
          {"carried", state.carried},
          {"gone", hex_of(state.gone)},
          {"done", state.done},
          {"used", hex_of(state.used)},
          {"saved", state.saved},
          {"steps_before", state.steps_before}};
  if (state.geometry.longest > 0) json["longest"] = state.geometry.longest;
  if (!state.mixture) return;
  const MixtureState& mixture = *state.mixture;
  json["mixture"] = {{"drawn", mixture.drawn}, {"owed", mixture.owed}, {"range", mixture.range}};
  if (mixture.block_samples) json["mixture"]["block_samples"] = *mixture.block_samples;
}

void from_json(const nlohmann::json& json, PlanState& state) {
  if (!json.is_object()) fail("the planner's state is not a JSON object");
  if (const int version = member<int>(json, "version"); version != kVersion) {
    fail("the planner's state has version {}; this program reads version {}", version, kVersion);
  }
  state.data = member<std::string>(json, "data");
  state.order = member<std::string>(json, "order");
  const auto geometry = member<nlohmann::json>(json, "geometry");
  PlanOptions options;
  options.ranks = member<int>(geometry, "ranks");
  options.accumulate = member<int>(geometry, "accumulate");
  options.cap = member<std::uint64_t>(geometry, "cap");
  const auto cost = member<std::vector<double>>(geometry, "cost");
  if (cost.size() != 2) fail("the planner's state: \"cost\" has {} numbers, not 2", cost.size());
  options.cost = {cost[0], cost[1]};
  options.randomness = member<double>(geometry, "randomness");
  options.padded = member<bool>(geometry, "padded");
  options.pad_multiple = member<std::uint32_t>(geometry, "pad_multiple");
  options.speeds = member<std::vector<double>>(geometry, "speeds");
  options.seed = member<std::uint64_t>(json, "seed");
  options.epoch = member<std::uint64_t>(json, "epoch");
  options.order = member<bool>(json, "sequential") ? Order::sequential : Order::shuffled;
  const int too_long = member<int>(json, "too_long");
  if (too_long < 0 || too_long > static_cast<int>(TooLong::split)) {
    fail("the planner's state: \"too_long\" is {}, which is not known", too_long);
  }
  options.too_long = static_cast<TooLong>(too_long);
  const int tail = member<int>(json, "tail");
  if (tail < 0 || tail > static_cast<int>(Tail::repeat)) {
    fail("the planner's state: \"tail\" is {}, which is not known", tail);
  }
  options.tail = static_cast<Tail>(tail);
  check_options(options);
  state.geometry = options;
  state.block = member<std::size_t>(json, "block");
  state.carried = member<std::vector<SampleId>>(json, "carried");
  state.gone = bits_of(member<std::string>(json, "gone"), "gone");
  state.done = member<std::uint64_t>(json, "done");
  state.used = bits_of(member<std::string>(json, "used"), "used");
  state.saved = member<double>(json, "saved");
  if (!std::isfinite(state.saved)) fail("the planner's state: \"saved\" is not a number");
  state.steps_before = member<std::uint64_t>(json, "steps_before");
  if (json.contains("longest")) state.geometry.longest = member<std::uint64_t>(json, "longest");
  state.mixture.reset();
  if (!json.contains("mixture")) return;
  const auto found = member<nlohmann::json>(json, "mixture");
  MixtureState mixture;
  mixture.drawn = member<std::vector<std::uint64_t>>(found, "drawn");
  mixture.owed = member<std::vector<double>>(found, "owed");
  mixture.range = member<std::size_t>(found, "range");
  if (found.contains("block_samples")) {
    mixture.block_samples = member<std::uint64_t>(found, "block_samples");
  }
  state.mixture = std::move(mixture);
}

bool same_geometry(const PlanOptions& x, const PlanOptions& y) {
  return x.ranks == y.ranks && x.accumulate == y.accumulate && x.cap == y.cap && x.cost.a == y.cost.a &&
         x.cost.b == y.cost.b && x.randomness == y.randomness && x.padded == y.padded &&
         x.pad_multiple == y.pad_multiple && x.speeds == y.speeds && x.tail == y.tail;
}

PlanState start_behind(
    const PlanState& state, const PlanOptions& options,
    const std::function<std::optional<std::vector<bool>>(const PlanState& start)>& used_again) {
  PlanState start = state;
  start.geometry = options;
  start.used = state.gone;
  if (state.done == 0) return start;
  if (same_geometry(options, state.geometry)) {
    PlanState begin = start;
    begin.done = 0;
    if (auto used = used_again(begin)) {
      std::vector<bool> expected = state.used;
      used->resize(std::max(used->size(), expected.size()));
      expected.resize(used->size());
      if (*used == expected) return start;
    }
  }
  const auto accumulate = static_cast<std::uint64_t>(state.geometry.accumulate);
  start.steps_before += (state.done + accumulate - 1) / accumulate;
  start.gone = state.used;
  start.used = state.used;
  start.done = 0;
  return start;
}

}  // namespace lockstep::data
