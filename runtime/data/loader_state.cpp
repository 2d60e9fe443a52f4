#include "runtime/data/loader_state.h"

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace lockstep::data {

std::string to_text(const LoaderState& state) {
  return nlohmann::json{{"seed", state.seed}, {"epoch", state.epoch}, {"plan", state.plan}}.dump();
}

LoaderState state_from_text(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    LoaderState state;
    state.seed = json.at("seed");
    state.epoch = json.at("epoch");
    from_json(json.at("plan"), state.plan);
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("the loader's state cannot be read: {}", error.what());
  }
}

}  // namespace lockstep::data
