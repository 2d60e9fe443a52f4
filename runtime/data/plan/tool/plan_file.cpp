#include "runtime/data/plan/tool/plan_file.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "common/output.h"
#include "runtime/data/plan/mixture/mixture_file.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kFileVersion = 2;
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

}  // namespace lockstep::data
