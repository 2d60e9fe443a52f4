#include "runtime/data/plan/plan_state.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/json_fields.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kVersion = 2;

using Counts = std::vector<std::uint64_t>;

std::uint64_t count(const nlohmann::json& json, const char* name) {
  return json_member<std::uint64_t>(json, name);
}

PlanState read(const nlohmann::json& json) {
  if (const std::uint64_t version = count(json, "version"); version != kVersion) {
    fail("version {}, and this program reads version {}: {}", version, kVersion,
         version < kVersion
             ? "its steps are composed in another way, so begin the epoch again or finish it with the "
               "version that wrote the state"
             : "use a newer version of the program");
  }
  PlanState state{.data = json_member<std::string>(json, "data"),
                  .order = json_member<std::string>(json, "order"),
                  .steps = count(json, "steps"),
                  .position = {.block = count(json, "block"), .used = count(json, "used")}};
  if (const auto mixture = json.find("mixture"); mixture != json.end()) {
    state.position.mixture = {.drawn = json_member<Counts>(*mixture, "drawn"),
                              .piece = json_member<Counts>(*mixture, "piece"),
                              .tokens = json_member<Counts>(*mixture, "tokens")};
  }
  return state;
}

}  // namespace

void to_json(nlohmann::json& json, const PlanState& state) {
  const PlanPosition& position = state.position;
  json = {{"version", kVersion},  {"data", state.data},      {"order", state.order},
          {"steps", state.steps}, {"block", position.block}, {"used", position.used}};
  if (!position.mixture) return;
  const MixturePosition& mixture = *position.mixture;
  json["mixture"] = {{"drawn", mixture.drawn}, {"piece", mixture.piece}, {"tokens", mixture.tokens}};
}

void from_json(const nlohmann::json& json, PlanState& state) {
  try {
    state = read(json);
  } catch (const Error& error) {
    fail("the planner's state: {}", error.what());
  }
}

PlanState state_after(const PlannedBlock& block, std::size_t steps) {
  if (steps > block.after.size()) {
    fail_usage("a block of {} steps has no state after {}", block.after.size(), steps);
  }
  PlanState state = block.start;
  if (steps > 0) state.position = block.after[steps - 1];
  state.steps += steps;
  return state;
}

}  // namespace lockstep::data
