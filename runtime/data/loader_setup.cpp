#include "runtime/data/loader_setup.h"

#include <fmt/ranges.h>
#include <torch/torch.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/error.h"
#include "common/launcher.h"
#include "runtime/data/batch/batch_builder.h"
#include "runtime/data/batch/image_batch_builder.h"
#include "runtime/data/plan/planner.h"
#include "runtime/profile/accelerator.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMaxWorkers = 4;
constexpr std::uint64_t kMaxCap = std::numeric_limits<std::int32_t>::max();  // cu_seqlens

// A LibTorch without such devices has no page-locked memory and would throw.
bool page_locked(const LoaderOptions& options) {
  return !options.device.is_cpu() && device_count(options.device.type()) > 0;
}

// Refuses a device that does not exist: LibTorch may be built without CUDA, or there may be fewer devices.
void check_device(const torch::Device& device) {
  if (device.is_cpu()) return;
  const int devices = device_count(device.type());
  if (device.has_index() ? device.index() < devices : devices > 0) return;
  fail_usage("batches cannot be copied to {}: LibTorch finds {} devices of this kind on this node",
             device.str(), devices);
}

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

void check_loader_options(const PlanOptions& plan, int rank, const LoaderOptions& options) {
  check_options(plan);
  if (rank < 0 || rank >= plan.ranks) fail_usage("rank must be in 0..{}, not {}", plan.ranks - 1, rank);
  if (options.workers < 0) fail_usage("workers must be at least 0, not {}", options.workers);
  if (options.batches_ahead < 1)
    fail_usage("batches_ahead must be at least 1, not {}", options.batches_ahead);
  if (plan.cap > kMaxCap) fail_usage("cap must be at most {}, not {}", kMaxCap, plan.cap);
  check_device(options.device);
  if (options.images && plan.padded) fail_usage("batches of images cannot be padded");
}

std::size_t batch_bytes(const PlanOptions& plan, const LoaderOptions& options) {
  return options.images ? ImageBatchBuilder::buffer_bytes(plan, *options.images)
                        : BatchBuilder::buffer_bytes(plan, !options.device.is_cpu());
}

PrefetchOptions prefetch_options(const LoaderOptions& options, std::size_t batch_bytes) {
  PrefetchOptions prefetch;
  prefetch.cpus = background_cpus();
  const auto threads = std::clamp<std::size_t>(worker_cpus().size(), 1, kMaxWorkers);
  prefetch.threads = options.workers > 0 ? options.workers : static_cast<int>(threads);
  prefetch.ahead = std::clamp<std::size_t>(options.bytes_ahead / batch_bytes, 1,
                                           static_cast<std::size_t>(options.batches_ahead));
  return prefetch;
}

Lengths planned_lengths(const pack::Reader& reader, const PlanOptions& plan, const LoaderOptions& options) {
  if (options.images) {
    return {.tokens = std::vector<std::uint32_t>(reader.size(), 1), .fingerprint = reader.fingerprint()};
  }
  Lengths lengths = lengths_from_pack(reader, "the loader's data");
  if (plan.too_long != TooLong::refuse) return lengths;
  for (std::size_t i = 0; i < lengths.tokens.size(); ++i) {
    if (lengths.tokens[i] <= plan.cap) continue;
    check_sample(fmt::format("sample '{}' (number {})", reader.key(i), i), lengths.tokens[i], plan);
  }
  return lengths;
}

std::vector<comm::Property> plan_inputs(const Lengths& lengths, const PlanOptions& plan,
                                        const LoaderOptions& options) {
  const auto of_mixture = [&] {
    if (!options.mixture) return std::string("none");
    return fmt::format("{} steps of {}", options.mixture->steps, fingerprint_of(*options.mixture));
  };
  return {{"the number of samples", std::to_string(lengths.tokens.size())},
          {"the data's fingerprint", lengths.fingerprint},
          {"the seed", std::to_string(plan.seed)},
          {"the first epoch", std::to_string(plan.epoch)},
          {"the order", plan.order == Order::sequential ? "sequential" : "shuffled"},
          {"the cap", std::to_string(plan.cap)},
          {"accumulate", std::to_string(plan.accumulate)},
          {"the cost", fmt::format("{},{}", plan.cost.a, plan.cost.b)},
          {"the step's tokens", std::to_string(step_budget(plan))},
          {"the step's stretch", fmt::format("{}", step_stretch(plan))},
          {"equal_micro_batches", plan.equal_micro_batches ? "true" : "false"},
          {"the speeds", fmt::format("{}", fmt::join(plan.speeds, ","))},
          {"padding", plan.padded ? fmt::format("to multiples of {}", plan.pad_multiple) : "none"},
          {"too_long", name_of(plan.too_long)},
          {"tail", name_of(plan.tail)},
          {"the mixture", of_mixture()}};
}

std::unique_ptr<HostBatchBuilder> make_builder(const pack::Reader& reader, const Lengths& lengths,
                                               const PlanOptions& plan, int rank, int workers,
                                               const LoaderOptions& options) {
  BuildOptions build{.rank = rank,
                     .workers = workers,
                     .plan = plan,
                     .loader = options,
                     .page_locked = page_locked(options),
                     .for_device = !options.device.is_cpu()};
  if (options.images) return std::make_unique<ImageBatchBuilder>(reader, build);
  build.mapped = options.mapped ? *options.mapped && reader.can_view() : reader.safe_to_map();
  return std::make_unique<BatchBuilder>(reader, lengths.tokens, build);
}

std::shared_ptr<BlockwisePlanner> make_planner(const LengthSource& source, const PlanOptions& plan,
                                               const LoaderOptions& options, const PlanState* state) {
  if (options.mixture) {
    return state != nullptr ? std::make_shared<MixturePlanner>(source, plan, *options.mixture, *state)
                            : std::make_shared<MixturePlanner>(source, plan, *options.mixture);
  }
  return state != nullptr ? std::make_shared<EpochPlanner>(source, plan, *state)
                          : std::make_shared<EpochPlanner>(source, plan);
}

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
