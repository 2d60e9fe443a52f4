#include "runtime/data/loader_state.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/error.h"

namespace lockstep::data {
namespace {

constexpr const char* kChecksum = "checksum";

// The checksum of the values. It does not depend on how the text is formatted.
std::string checksum_of(const nlohmann::json& json) {
  const std::string text = json.dump();
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

void take_checksum(nlohmann::json& json) {
  const auto found = json.find(kChecksum);
  if (found == json.end()) {
    fail("the loader's state has no checksum, so it is damaged: use another checkpoint");
  }
  const nlohmann::json checksum = std::move(*found);
  json.erase(found);
  if (checksum != checksum_of(json)) {
    fail("the checksum of the loader's state does not match: the state was modified; use another checkpoint");
  }
}

}  // namespace

std::string to_text(const LoaderState& state) {
  nlohmann::json json{{"seed", state.seed}, {"epoch", state.epoch}, {"plan", state.plan}};
  json[kChecksum] = checksum_of(json);
  return json.dump();
}

LoaderState state_from_text(std::string_view text) {
  try {
    auto json = nlohmann::json::parse(text);
    if (!json.is_object()) fail("the loader's state is not a JSON object");
    take_checksum(json);
    LoaderState state;
    state.seed = json.at("seed");
    state.epoch = json.at("epoch");
    from_json(json.at("plan"), state.plan);
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("cannot read the loader's state: {}", error.what());
  }
}

std::string summary_of(std::string_view text) {
  if (text.empty()) return "none";
  const LoaderState state = state_from_text(text);
  return fmt::format("epoch {} after {} steps ({:016x})", state.epoch, state.plan.steps,
                     XXH3_64bits(text.data(), text.size()));
}

}  // namespace lockstep::data
