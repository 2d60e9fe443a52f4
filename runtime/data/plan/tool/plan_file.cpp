#include "runtime/data/plan/tool/plan_file.h"

#include <fmt/format.h>

#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/plan/json_fields.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kFileVersion = 2;

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
  if (is_histogram)
    return lengths_from_histogram(folder / text("histogram"), json_member<std::uint64_t>(part, "samples"));
  std::vector<std::filesystem::path> packs;
  for (const auto& name : json_member<std::vector<std::string>>(part, "packed"))
    packs.push_back(folder / name);
  return lengths_from_packs(packs);
}

// Writes a step's micro-batches as nested lists. `write` appends a sample.
template <typename Write>
void write_batches(const Plan& plan, std::size_t step, std::string& text, Write write) {
  for (int rank = 0; rank < plan.options().ranks; ++rank) {
    text += rank == 0 ? "[[" : ",[";
    for (std::size_t m = 0; m < plan.micro_batches(step, rank); ++m) {
      text += m == 0 ? "[" : ",[";
      bool first = true;
      for (const SampleId sample : plan.micro_batch(step, rank, m)) {
        if (!first) text += ',';
        first = false;
        write(sample);
      }
      text += ']';
    }
    text += ']';
  }
  text += ']';
}

void write_step(const Plan& plan, std::size_t step, std::string& text) {
  const auto add = [&text](std::uint64_t number) {
    const fmt::format_int digits(number);
    text.append(digits.data(), digits.size());
  };
  fmt::format_to(std::back_inserter(text), R"({{"step":{},"ranks":)", step);
  bool later_epochs = false;
  write_batches(plan, step, text, [&](SampleId sample) {
    later_epochs = later_epochs || epoch_of(sample) > 0;
    if (piece_of(sample) == 0) return add(sample_of(sample));
    fmt::format_to(std::back_inserter(text), "[{},{}]", sample_of(sample), piece_of(sample));
  });
  if (later_epochs) {
    text += R"(,"epochs":)";
    write_batches(plan, step, text, [&](SampleId sample) { add(epoch_of(sample)); });
  }
  text += "}\n";
}

nlohmann::ordered_json header_of(const PlannedMixture& planned) {
  auto parts = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < planned.mixture.parts.size(); ++i) {
    const MixturePart& part = planned.mixture.parts[i];
    parts.push_back({{"name", part.name}, {"samples", part.samples}, {"drawn", planned.drawn[i]}});
  }
  auto left = nlohmann::ordered_json::array();
  for (const SampleId id : planned.left) left.push_back({sample_of(id), piece_of(id), epoch_of(id)});
  return {{"parts", std::move(parts)},
          {"weights", planned.mixture.weights},
          {"steps", planned.mixture.steps},
          {"left", std::move(left)}};
}

}  // namespace

MixtureData read_mixture(const std::filesystem::path& file) {
  const nlohmann::json json = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (json.is_discarded()) fail("{}: the file is not valid JSON", file.string());
  MixtureData data;
  try {
    expect_only(json, {"parts", "weights", "steps"});
    for (const nlohmann::json& part : json_member<nlohmann::json>(json, "parts")) {
      const auto name = json_member<std::string>(part, "name");
      const Lengths lengths = lengths_of_part(part, file.parent_path());
      data.mixture.parts.push_back({name, lengths.tokens.size()});
      data.lengths.append(lengths);
    }
    data.mixture.weights = json_member<std::vector<double>>(json, "weights");
    data.mixture.steps = json_member<std::uint64_t>(json, "steps");
    check_mixture(data.mixture, data.lengths.tokens.size());
  } catch (const Error& error) {  // also a UsageError: the mistake is in the file, not in the call
    fail("{}: {}", file.string(), error.what());
  }
  return data;
}

void write_plan(const Plan& plan, const std::filesystem::path& file) {
  const PlanOptions& options = plan.options();
  nlohmann::ordered_json header = {{"version", kFileVersion},
                                   {"samples", plan.samples()},
                                   {"ranks", options.ranks},
                                   {"cap", options.cap},
                                   {"accumulate", options.accumulate},
                                   {"cost", {options.cost.a, options.cost.b}},
                                   {"seed", options.seed},
                                   {"epoch", options.epoch},
                                   {"fingerprint", plan.fingerprint()}};
  if (options.step_tokens > 0) header["step_tokens"] = options.step_tokens;
  if (options.step_stretch) header["step_stretch"] = *options.step_stretch;
  if (options.equal_micro_batches) header["equal_micro_batches"] = true;
  if (options.padded) {
    header["padded"] = true;
    header["pad_multiple"] = options.pad_multiple;
  }
  if (options.too_long != TooLong::refuse) header["too_long"] = name_of(options.too_long);
  if (options.tail != Tail::fill) header["tail"] = name_of(options.tail);
  if (!options.speeds.empty()) header["speeds"] = options.speeds;
  if (plan.mixture() != nullptr) header["mixture"] = header_of(*plan.mixture());
  std::string text = header.dump() + '\n';
  for (std::size_t step = 0; step < plan.steps(); ++step) write_step(plan, step, text);
  write_output(file, text);
}

}  // namespace lockstep::data
