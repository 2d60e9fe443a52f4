#include "runtime/data/plan/plan_file.h"

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
#include "runtime/data/plan/mixture_file.h"

namespace lockstep::data {
namespace {

constexpr int kVersion = 1;
constexpr std::uint64_t kAny = ~std::uint64_t{0};

// One line of the file, and the errors that name it.
struct Line {
  const std::filesystem::path& file;
  std::size_t number;

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}:{}: {}", file.string(), number, fmt::format(format, std::forward<Args>(args)...));
  }

  const nlohmann::json& member(const nlohmann::json& object, const char* name) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (!object.is_object() || found == object.end()) refuse("there is no \"{}\"", name);
    return *found;
  }

  std::uint64_t number_in(const nlohmann::json& object, const char* name, std::uint64_t least,
                          std::uint64_t most) const {
    const nlohmann::json& value = member(object, name);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < least ||
        value.get<std::uint64_t>() > most) {
      refuse("\"{}\" is {}, not a whole number in {}..{}", name, value.dump(), least, most);
    }
    return value.get<std::uint64_t>();
  }

  // A number that has its place in a SampleId.
  std::uint64_t part_of_id(const std::string& rank, const nlohmann::json& value, std::uint64_t end,
                           const char* what) const {
    if (!value.is_number_unsigned()) refuse("{}: {} {} is not a whole number", rank, what, value.dump());
    const auto part = value.get<std::uint64_t>();
    if (part >= end) refuse("{}: there is no {} {}", rank, what, part);
    return part;
  }

  const nlohmann::json& list(const nlohmann::json& value, std::size_t size, std::string_view of,
                             std::string_view what) const {
    if (!value.is_array()) refuse("{} is not a list", of);
    if (value.size() != size) refuse("{} has {} {}, not {}", of, value.size(), what, size);
    return value;
  }
};

PlanOptions read_options(const Line& line, const nlohmann::json& header) {
  constexpr std::uint64_t most_parts = 1U << 24U;
  if (const nlohmann::json& version = line.member(header, "version"); version != kVersion) {
    line.refuse("version {} is not known; this program reads version {}", version.dump(), kVersion);
  }
  PlanOptions options;
  options.ranks = static_cast<int>(line.number_in(header, "ranks", 1, most_parts));
  options.cap = line.number_in(header, "cap", 1, kAny);
  options.accumulate = static_cast<int>(line.number_in(header, "accumulate", 1, most_parts));
  options.seed = line.number_in(header, "seed", 0, kAny);
  options.epoch = line.number_in(header, "epoch", 0, kAny);
  const nlohmann::json& cost = line.list(line.member(header, "cost"), 2, "\"cost\"", "numbers");
  if (!cost[0].is_number() || !cost[1].is_number())
    line.refuse("\"cost\" is {}, not two numbers", cost.dump());
  options.cost = {cost[0].get<double>(), cost[1].get<double>()};
  if (const auto padded = header.find("padded"); padded != header.end()) {
    if (!padded->is_boolean()) line.refuse("\"padded\" is {}, not true or false", padded->dump());
    options.padded = padded->get<bool>();
  }
  if (options.padded) {
    options.pad_multiple =
        header.contains("pad_multiple")
            ? static_cast<std::uint32_t>(line.number_in(header, "pad_multiple", 1, most_parts))
            : 1;
  }
  const auto word = [&](const char* name) {
    const auto found = header.find(name);
    return found != header.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (header.contains("too_long")) options.too_long = too_long_of(word("too_long"), "too_long");
  if (header.contains("tail")) options.tail = tail_of(word("tail"), "tail");
  if (header.contains("speeds")) {
    for (const nlohmann::json& speed :
         line.list(header["speeds"], static_cast<std::size_t>(options.ranks), "\"speeds\"", "numbers")) {
      if (!speed.is_number()) line.refuse("\"speeds\" has {}, not a number", speed.dump());
      options.speeds.push_back(speed.get<double>());
    }
  }
  check_options(options);
  return options;
}

Plan read_header(const Line& line, const nlohmann::json& header) {
  PlanOptions options;
  try {
    options = read_options(line, header);
  } catch (const UsageError& error) {  // of whoever wrote the file
    line.refuse("{}", error.what());
  }
  const nlohmann::json& fingerprint = line.member(header, "fingerprint");
  if (!fingerprint.is_string()) line.refuse("\"fingerprint\" is not a string");
  Plan plan(options, line.number_in(header, "samples", 0, kAny), fingerprint.get<std::string>());
  if (!header.contains("mixture")) return plan;
  try {
    plan.set_mixture(std::make_shared<PlannedMixture>(header["mixture"].get<PlannedMixture>()));
  } catch (const Error& error) {
    line.refuse("the mixture: {}", error.what());
  }
  return plan;
}

// The micro-batches of a step, rank by rank: what(name of the rank, which micro-batch, its list).
template <typename What>
void for_each_batch(const Line& line, const nlohmann::json& object, const char* member,
                    const PlanOptions& options, What what) {
  const nlohmann::json& ranks =
      line.list(line.member(object, member), static_cast<std::size_t>(options.ranks), "the step", "ranks");
  std::size_t place = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string name = fmt::format("rank {}", rank);
    for (const nlohmann::json& batch :
         line.list(ranks[rank], static_cast<std::size_t>(options.accumulate), name, "micro-batches")) {
      if (!batch.is_array()) line.refuse("{}: a micro-batch is not a list", name);
      what(name, place++, batch);
    }
  }
}

void read_step(const Line& line, const nlohmann::json& object, Plan& plan) {
  const std::uint64_t step = line.number_in(object, "step", 0, ~std::uint64_t{0});
  if (step != plan.steps()) line.refuse("step {} where step {} is next", step, plan.steps());
  std::vector<std::vector<SampleId>> batches;
  for_each_batch(line, object, "ranks", plan.options(),
                 [&](const std::string& name, std::size_t, const nlohmann::json& batch) {
                   std::vector<SampleId>& samples = batches.emplace_back();
                   for (const nlohmann::json& sample : batch) {
                     const bool piece = sample.is_array() && sample.size() == 2;
                     SampleId id = line.part_of_id(name, piece ? sample[0] : sample, kMostSamples, "sample");
                     if (piece) id |= line.part_of_id(name, sample[1], kMostPieces, "piece") << kPieceShift;
                     samples.push_back(id);
                   }
                 });
  if (plan.mixture() != nullptr && object.contains("epochs")) {
    for_each_batch(line, object, "epochs", plan.options(),
                   [&](const std::string& name, std::size_t place, const nlohmann::json& batch) {
                     std::vector<SampleId>& samples = batches[place];
                     line.list(batch, samples.size(), name, "epochs");
                     for (std::size_t i = 0; i < samples.size(); ++i) {
                       samples[i] |= line.part_of_id(name, batch[i], 256, "epoch") << kEpochShift;
                     }
                   });
  }
  for (const std::vector<SampleId>& batch : batches) plan.append(batch);
}

// A step's micro-batches as nested lists, `write` adding each sample.
template <typename Write>
void write_batches(const Plan& plan, std::size_t step, std::string& text, Write write) {
  for (int rank = 0; rank < plan.options().ranks; ++rank) {
    text += rank == 0 ? "[[" : ",[";
    for (int m = 0; m < plan.options().accumulate; ++m) {
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
  nlohmann::ordered_json header = {
      {"version", kVersion},  {"samples", plan.samples()},        {"ranks", options.ranks},
      {"cap", options.cap},   {"accumulate", options.accumulate}, {"cost", {options.cost.a, options.cost.b}},
      {"seed", options.seed}, {"epoch", options.epoch},           {"fingerprint", plan.fingerprint()}};
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
    const Line line{file, ++number};
    const auto end = rest.find('\n');
    const std::string_view text = rest.substr(0, end);
    if (end == std::string_view::npos) line.refuse("the line does not end: the file is cut short");
    rest.remove_prefix(end + 1);
    const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
    if (object.is_discarded()) line.refuse("not JSON");
    if (number == 1) {
      plan = read_header(line, object);
    } else {
      read_step(line, object, plan);
    }
  }
  if (number == 0) fail("{}: the file is empty", file.string());
  return plan;
}

}  // namespace lockstep::data
