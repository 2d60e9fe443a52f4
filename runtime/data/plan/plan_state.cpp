#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/data/plan/json_fields.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kStateVersion = 3;

PlanState read(const nlohmann::json& json) {
  if (const auto version = json_member<std::uint64_t>(json, "version"); version != kStateVersion) {
    fail("it has version {}, but this program reads version {}: use the version of Lockstep that wrote it",
         version, kStateVersion);
  }
  PlanState state{.data = json_member<std::string>(json, "data"),
                  .order = json_member<std::string>(json, "order"),
                  .steps = json_member<std::uint64_t>(json, "steps"),
                  .position = {.block = json_member<std::uint64_t>(json, "block"),
                               .used = json_member<std::uint64_t>(json, "used")}};
  if (json.contains("ahead")) state.position.ahead = json_member<std::vector<std::uint64_t>>(json, "ahead");
  if (const auto mixture = json.find("mixture"); mixture != json.end()) {
    using Counts = std::vector<std::uint64_t>;
    state.position.mixture = {.drawn = json_member<Counts>(*mixture, "drawn"),
                              .piece = json_member<Counts>(*mixture, "piece"),
                              .tokens = json_member<Counts>(*mixture, "tokens")};
    if (mixture->contains("waiting"))
      state.position.mixture->waiting = json_member<Counts>(*mixture, "waiting");
  }
  return state;
}

}  // namespace

void to_json(nlohmann::json& json, const PlanState& state) {
  const PlanPosition& position = state.position;
  json = {{"version", kStateVersion}, {"data", state.data},      {"order", state.order},
          {"steps", state.steps},     {"block", position.block}, {"used", position.used}};
  if (!position.ahead.empty()) json["ahead"] = position.ahead;
  if (!position.mixture) return;
  const MixturePosition& mixture = *position.mixture;
  json["mixture"] = {{"drawn", mixture.drawn}, {"piece", mixture.piece}, {"tokens", mixture.tokens}};
  if (!mixture.waiting.empty()) json["mixture"]["waiting"] = mixture.waiting;
}

void from_json(const nlohmann::json& json, PlanState& state) {
  try {
    state = read(json);
  } catch (const Error& error) {
    fail("cannot read the planner's state: {}", error.what());
  }
}

}  // namespace lockstep::data
