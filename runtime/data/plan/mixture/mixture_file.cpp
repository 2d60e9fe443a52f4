#include "runtime/data/plan/mixture/mixture_file.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/plan/json_fields.h"

namespace lockstep::data {
namespace {

std::uint64_t number(const nlohmann::json& object, const char* name) {
  return json_member<std::uint64_t>(object, name);
}

nlohmann::json list(const nlohmann::json& object, const char* name) {
  return json_member<nlohmann::json>(object, name);
}

// Refuses unknown keys: a misspelt key would otherwise count as left out.
void expect_only(const nlohmann::json& object, std::initializer_list<const char*> names) {
  if (!object.is_object()) fail("{} is not a JSON object", object.dump().substr(0, 60));
  for (const auto& [key, value] : object.items()) {
    bool known = false;
    for (const char* name : names) known = known || key == name;
    if (!known) fail("unknown key \"{}\"", key);
  }
}

Lengths lengths_of_part(const nlohmann::json& part, const std::filesystem::path& folder) {
  expect_only(part, {"name", "lengths", "column", "histogram", "samples", "packed"});
  const bool is_list = part.contains("lengths");
  const bool is_histogram = part.contains("histogram");
  if (int{is_list} + int{is_histogram} + int{part.contains("packed")} != 1) {
    fail("a part needs exactly one source of lengths: \"lengths\", \"histogram\" or \"packed\"");
  }
  const auto text = [&](const char* name) { return json_member<std::string>(part, name); };
  if (is_list) {
    return lengths_from_csv(folder / text("lengths"), part.contains("column") ? text("column") : "length");
  }
  if (is_histogram) return lengths_from_histogram(folder / text("histogram"), number(part, "samples"));
  std::vector<std::filesystem::path> packs;
  for (const auto& name : json_member<std::vector<std::string>>(part, "packed"))
    packs.push_back(folder / name);
  return lengths_from_packs(packs);
}

}  // namespace

MixtureData read_mixture(const std::filesystem::path& file) {
  const nlohmann::json json = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (json.is_discarded()) fail("{}: the file is not valid JSON", file.string());
  MixtureData data;
  try {
    expect_only(json, {"parts", "weights", "steps"});
    for (const nlohmann::json& part : list(json, "parts")) {
      const auto name = json_member<std::string>(part, "name");
      Lengths lengths = lengths_of_part(part, file.parent_path());
      data.mixture.parts.push_back({name, lengths.tokens.size()});
      data.lengths.tokens.insert(data.lengths.tokens.end(), lengths.tokens.begin(), lengths.tokens.end());
      if (!data.lengths.fingerprint.empty()) data.lengths.fingerprint += '+';
      data.lengths.fingerprint += lengths.fingerprint;
    }
    data.mixture.weights = json_member<std::vector<double>>(json, "weights");
    data.mixture.steps = number(json, "steps");
    check_mixture(data.mixture, data.lengths.tokens.size());
  } catch (const Error& error) {  // also a UsageError: the mistake is in the file, not in the call
    fail("{}: {}", file.string(), error.what());
  }
  return data;
}

void to_json(nlohmann::ordered_json& json, const PlannedMixture& planned) {
  auto parts = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < planned.mixture.parts.size(); ++i) {
    const MixturePart& part = planned.mixture.parts[i];
    parts.push_back({{"name", part.name}, {"samples", part.samples}, {"drawn", planned.drawn[i]}});
  }
  auto left = nlohmann::ordered_json::array();
  for (const SampleId id : planned.left) left.push_back({sample_of(id), piece_of(id), epoch_of(id)});
  json = {{"parts", std::move(parts)},
          {"weights", planned.mixture.weights},
          {"steps", planned.mixture.steps},
          {"left", std::move(left)}};
}

}  // namespace lockstep::data
