#include "runtime/data/plan/tool/plan_file.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/output.h"
#include "runtime/data/plan/json_fields.h"
#include "runtime/data/plan/mixture/mixture_file.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kFileVersion = 2;
constexpr std::uint64_t kAny = ~std::uint64_t{0};

std::uint64_t number_in(const nlohmann::json& object, const char* name, std::uint64_t min,
                        std::uint64_t max) {
  const auto value = json_member<std::uint64_t>(object, name);
  if (value < min || value > max)
    fail("\"{}\" must be a whole number in {}..{}, not {}", name, min, max, value);
  return value;
}

template <typename T>
T member_or(const nlohmann::json& object, const char* name, T otherwise) {
  return object.contains(name) ? json_member<T>(object, name) : otherwise;
}

// The number of a sample, piece or epoch; it must be below `end`.
std::uint64_t number_below(std::uint64_t end, const nlohmann::json& value, const std::string& rank,
                           const char* what) {
  if (!value.is_number_unsigned()) fail("{}: {} {} is not a whole number", rank, what, value.dump());
  const auto number = value.get<std::uint64_t>();
  if (number >= end) fail("{}: there is no {} {}", rank, what, number);
  return number;
}

PlanOptions read_options(const nlohmann::json& header) {
  constexpr std::uint64_t max_parts = 1U << 24U;
  if (const auto version = json_member<std::uint64_t>(header, "version"); version != kFileVersion) {
    fail("version {} cannot be read, this program reads version {}: make the plan again", version,
         kFileVersion);
  }
  PlanOptions options;
  options.ranks = static_cast<int>(number_in(header, "ranks", 1, max_parts));
  options.cap = number_in(header, "cap", 1, kAny);
  options.accumulate = static_cast<int>(number_in(header, "accumulate", 1, max_parts));
  options.seed = number_in(header, "seed", 0, kAny);
  options.epoch = number_in(header, "epoch", 0, kAny);
  const auto cost = json_member<std::vector<double>>(header, "cost");
  if (cost.size() != 2) fail("\"cost\" must have 2 numbers, not {}", cost.size());
  options.cost = {cost[0], cost[1]};
  options.padded = member_or(header, "padded", false);
  options.equal_micro_batches = member_or(header, "equal_micro_batches", false);
  if (header.contains("step_stretch")) options.step_stretch = json_member<double>(header, "step_stretch");
  if (header.contains("step_tokens")) options.step_tokens = number_in(header, "step_tokens", 1, kAny);
  if (options.padded) {
    options.pad_multiple = 1;
    if (header.contains("pad_multiple"))
      options.pad_multiple = static_cast<std::uint32_t>(number_in(header, "pad_multiple", 1, max_parts));
  }
  options.too_long =
      too_long_of(member_or<std::string>(header, "too_long", name_of(options.too_long)), "too_long");
  options.tail = tail_of(member_or<std::string>(header, "tail", name_of(options.tail)), "tail");
  options.speeds = member_or<std::vector<double>>(header, "speeds", {});
  check_options(options);
  return options;
}

Plan read_header(const nlohmann::json& header) {
  const PlanOptions options = read_options(header);
  Plan plan(options, number_in(header, "samples", 0, kMaxSamples),
            json_member<std::string>(header, "fingerprint"));
  if (header.contains("mixture")) {
    plan.set_mixture(std::make_shared<PlannedMixture>(header["mixture"].get<PlannedMixture>()));
    check_mixture(plan.mixture()->mixture, plan.samples());
  }
  return plan;
}

// Whether the nested lists have the same sizes.
template <typename T>
bool same_shape(const std::vector<T>& samples, const nlohmann::json& epochs) {
  if (!epochs.is_array() || epochs.size() != samples.size()) return false;
  if constexpr (!std::is_same_v<T, SampleId>) {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!same_shape(samples[i], epochs[i])) return false;
    }
  }
  return true;
}

void read_step(const nlohmann::json& object, Plan& plan) {
  const std::uint64_t number = number_in(object, "step", 0, kAny);
  if (number != plan.steps()) fail("step {} is here instead of step {}", number, plan.steps());
  const auto ranks = json_member<nlohmann::json>(object, "ranks");
  if (ranks.size() != static_cast<std::size_t>(plan.options().ranks)) {
    fail("the step has {} ranks, not {}", ranks.size(), plan.options().ranks);
  }
  std::vector<std::vector<std::vector<SampleId>>> step(ranks.size());
  for (std::size_t rank = 0; rank < step.size(); ++rank) {
    const std::string name = fmt::format("rank {}", rank);
    for (const nlohmann::json& batch : json_as<nlohmann::json>(ranks[rank], name)) {
      std::vector<SampleId>& samples = step[rank].emplace_back();
      for (const nlohmann::json& sample : json_as<nlohmann::json>(batch, name + ": a micro-batch")) {
        const bool piece = sample.is_array() && sample.size() == 2;
        SampleId id = number_below(plan.samples(), piece ? sample[0] : sample, name, "sample");
        if (piece) id |= number_below(kMaxPieces, sample[1], name, "piece") << kPieceShift;
        samples.push_back(id);
      }
    }
  }
  if (plan.mixture() != nullptr && object.contains("epochs")) {
    const nlohmann::json& epochs = object["epochs"];
    if (!same_shape(step, epochs)) fail("the lists in \"epochs\" and \"ranks\" have different sizes");
    for (std::size_t rank = 0; rank < step.size(); ++rank) {
      for (std::size_t m = 0; m < step[rank].size(); ++m) {
        for (std::size_t i = 0; i < step[rank][m].size(); ++i) {
          step[rank][m][i] |=
              number_below(kEpochNumbers, epochs[rank][m][i], fmt::format("rank {}", rank), "epoch")
              << kEpochShift;
        }
      }
    }
  }
  plan.append_step(step);
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

}  // namespace

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
  if (plan.mixture() != nullptr) header["mixture"] = *plan.mixture();
  std::string text = header.dump() + '\n';
  for (std::size_t step = 0; step < plan.steps(); ++step) write_step(plan, step, text);
  write_output(file, text);
}

Plan read_plan(const std::filesystem::path& file) {
  const std::string content = read_text_file(file);
  Plan plan;
  std::size_t number = 0;
  for (std::string_view rest = content; !rest.empty();) {
    ++number;
    try {
      const auto end = rest.find('\n');
      if (end == std::string_view::npos) fail("the line has no end: the file is cut short");
      const nlohmann::json object = nlohmann::json::parse(rest.substr(0, end), nullptr, false);
      rest.remove_prefix(end + 1);
      if (object.is_discarded()) fail("the line is not valid JSON");
      if (number == 1) {
        plan = read_header(object);
      } else {
        read_step(object, plan);
      }
    } catch (const Error& error) {
      fail("{}:{}: {}", file.string(), number, error.what());
    }
  }
  if (number == 0) fail("{}: the file is empty", file.string());
  return plan;
}

}  // namespace lockstep::data
