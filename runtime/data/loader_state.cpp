#include "runtime/data/loader_state.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace lockstep::data {

std::string to_text(const LoaderState& state) {
  nlohmann::json json{{"seed", state.seed}, {"epoch", state.epoch}, {"plan", state.plan}};
  if (state.learnt) {
    json["learnt"] = {{"cost", {state.learnt->cost.a, state.learnt->cost.b}},
                      {"speeds", state.learnt->speeds}};
  }
  return json.dump();
}

LoaderState state_from_text(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    LoaderState state;
    state.seed = json.at("seed");
    state.epoch = json.at("epoch");
    from_json(json.at("plan"), state.plan);
    if (json.contains("learnt")) {
      const auto& learnt = json.at("learnt");
      state.learnt = {.cost = {learnt.at("cost").at(0), learnt.at("cost").at(1)},
                      .speeds = learnt.at("speeds").get<std::vector<double>>()};
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("the loader's state cannot be read: {}", error.what());
  }
}

std::string in_short(std::string_view text) {
  if (text.empty()) return {};
  const LoaderState state = state_from_text(text);
  return fmt::format("epoch {}, block {}, {} micro-batches into it ({:016x})", state.epoch, state.plan.block,
                     state.plan.done, XXH3_64bits(text.data(), text.size()));
}

}  // namespace lockstep::data
