#include "exporters/report/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/units.h"
#include "exporters/record/record.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using record::Phase;
using record::Snapshot;

// In nanoseconds. Times of files may be earlier than the clock, by a tick of the kernel or on a file server.
constexpr std::int64_t kFileTimesLag = 1'000'000'000;

// The first steps of a job are slower.
constexpr std::uint64_t kFirstSteps = 2;
constexpr std::size_t kFewSteps = 8;

// The peak of memory is at least this share of the limit.
constexpr double kMemoryFull = 0.90;
constexpr double kMemoryFullOfDead = 0.80;  // the last sample may be a second old

bool is_record(const fs::path& path) {
  return path.extension() == ".record";
}

bool is_staging(const fs::path& path) {
  return path.extension() == ".json" && path.filename().string().starts_with("staging");
}

void load_staging(const fs::path& path, Run& run) {
  auto staging = read_staging_record(path);
  if (!staging) return;
  staging->node = printable(staging->node);
  for (StagedSource& source : staging->sources) source.source = printable(source.source);
  run.staging.push_back(std::move(*staging));
}

bool is_profile(const fs::path& path) {
  return path.filename() == "profile.json";
}

void load_file(const fs::path& path, std::size_t last_steps, Run& run) {
  if (is_staging(path)) return load_staging(path, run);
  if (is_profile(path)) {
    run.profile = read_profile(path);
    return;
  }
  Snapshot rank = record::Reader(path).read(last_steps);
  rank.identity.node = printable(rank.identity.node);
  rank.identity.program = printable(rank.identity.program);
  run.ranks.push_back(std::move(rank));
}

// Returns why the first of the damaged files cannot be read; empty if there is none.
std::string load_folder(const fs::path& folder, std::size_t last_steps, Run& run) {
  std::string first;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    const bool hidden = path.filename().string().starts_with('.');  // being written
    if (hidden || !(is_record(path) || is_staging(path) || is_profile(path))) continue;
    try {
      load_file(path, last_steps, run);
    } catch (const Error& damaged) {
      if (run.unreadable++ == 0) first = damaged.what();
    }
  }
  if (error) fail("cannot read the folder {}: {}", folder.string(), error.message());
  return first;
}

auto identity_of_run(const Snapshot& rank) {
  return std::make_tuple(rank.identity.job_id, rank.identity.step_id, rank.identity.size);
}

// The folder may also hold records of an earlier, larger run.
void keep_latest_run(Run& run) {
  const auto latest = std::max_element(run.ranks.begin(), run.ranks.end(), [](const auto& a, const auto& b) {
    return a.start_unix_ns < b.start_unix_ns;
  });
  const auto kept = identity_of_run(*latest);
  const std::size_t others =
      std::erase_if(run.ranks, [&](const Snapshot& rank) { return identity_of_run(rank) != kept; });
  if (others > 0) run.notes.push_back(fmt::format("{} records of other runs were left out", others));
  std::sort(run.ranks.begin(), run.ranks.end(),
            [](const auto& a, const auto& b) { return a.identity.rank < b.identity.rank; });
  const auto same_rank = [](const auto& a, const auto& b) { return a.identity.rank == b.identity.rank; };
  run.ranks.erase(std::unique(run.ranks.begin(), run.ranks.end(), same_rank), run.ranks.end());
  const auto missing = run.ranks.front().identity.size - static_cast<int>(run.ranks.size());
  if (missing > 0) {
    run.notes.push_back(
        fmt::format("{} of {} ranks have no record here", missing, run.ranks.front().identity.size));
  }
}

// A damaged file costs only the restarts.
void load_restarts(const std::vector<fs::path>& paths, Run& run) {
  const std::string name = fmt::format("restarts-{}.jsonl", run.ranks.front().identity.job_id);
  for (const fs::path& path : paths) {
    std::error_code error;
    if (!fs::exists(path / name, error)) continue;
    try {
      run.restarts = read_restarts(path / name);
    } catch (const Error& damaged) {
      run.notes.push_back(printable(damaged.what()));
    }
  }
}

constexpr std::size_t kModules = 10;

std::vector<Profile::Fault> faults(const nlohmann::json& list, double steps) {
  std::vector<Profile::Fault> all;
  for (const nlohmann::json& one : list) {
    all.push_back({.name = printable(one.at("name").get<std::string>()),
                   .calls = one.at("calls").get<double>() / steps,
                   .bytes = one.at("bytes").get<double>() / steps});
  }
  return all;
}

Profile parse(nlohmann::json read) {
  Profile profile{.rank = read.at("rank"),
                  .node = printable(read.at("node").get<std::string>()),
                  .steps = read.at("steps"),
                  .json = {}};
  const double steps = std::max(1.0, profile.steps);
  const auto mean = [&](const nlohmann::json& one, const char* key) {
    return one.at(key).get<double>() / steps;
  };
  const auto name = [](const nlohmann::json& one) { return printable(one.at("name").get<std::string>()); };
  profile.step_ms = mean(read, "step_ms");
  for (const nlohmann::json& one : read.at("operators")) {
    profile.operators.push_back({.name = name(one),
                                 .calls = mean(one, "calls"),
                                 .total_ms = mean(one, "total_ms"),
                                 .self_ms = mean(one, "self_ms")});
  }
  for (const nlohmann::json& one : read.at("modules")) {
    profile.modules.push_back({.name = name(one),
                               .forward_ms = mean(one, "forward_ms"),
                               .backward_ms = mean(one, "backward_ms"),
                               .forward_bytes = mean(one, "forward_bytes"),
                               .backward_bytes = mean(one, "backward_bytes")});
  }
  if (const auto device = read.find("device"); device != read.end()) {  // older profiles have none
    profile.device = {.computing_ms = mean(*device, "computing_ms"),
                      .tensor_cores_ms = mean(*device, "tensor_cores_ms"),
                      .communicating_ms = mean(*device, "communicating_ms"),
                      .copying_ms = mean(*device, "copying_ms"),
                      .busy_ms = mean(*device, "busy_ms")};
    for (const nlohmann::json& one : device->at("kernels")) {
      profile.device.kernels.push_back({.name = name(one),
                                        .calls = mean(one, "calls"),
                                        .total_ms = mean(one, "ms"),
                                        .self_ms = mean(one, "ms")});
    }
  }
  const nlohmann::json& small = read.at("small");
  profile.small = {.name = name(small), .calls = mean(small, "calls")};
  profile.small_ms = mean(small, "ms");
  profile.host_copies = faults(read.at("host_copies"), steps);
  profile.device_waits = faults(read.at("device_waits"), steps);
  if (read.contains("tuned_again")) profile.tuned_again = faults(read["tuned_again"], steps);
  profile.half_sums = faults(read.at("half_sums"), steps);
  profile.json = std::move(read);
  return profile;
}

std::int64_t modified_unix_ns(const std::filesystem::path& file) {
  const auto written = std::chrono::file_clock::to_sys(std::filesystem::last_write_time(file));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(written.time_since_epoch()).count();
}

std::string rounded_bytes(double count) {
  return format_bytes(static_cast<std::uint64_t>(count));
}

std::string device_text(const Profile& profile) {
  const Profile::Device& device = profile.device;
  if (device.kernels.empty() || profile.step_ms <= 0) return {};
  const auto percent = [&](double ms) { return 100 * ms / profile.step_ms; };
  std::string text = fmt::format(
      "of the step the GPU computes {:.0f} % (tensor cores {:.0f} %), communicates {:.0f} %, copies {:.0f} %, idles {:.0f} %\n",
      percent(device.computing_ms), percent(device.tensor_cores_ms), percent(device.communicating_ms),
      percent(device.copying_ms), std::max(0.0, 100 - percent(device.busy_ms)));
  text += fmt::format("{:>9} {:>9}  kernel\n", "calls", "total");
  for (const auto& one : device.kernels)
    text += fmt::format("{:>9.0f} {:>9.2f}  {}\n", one.calls, one.total_ms, one.name);
  return text;
}

}  // namespace

Run load(const std::vector<fs::path>& paths, std::size_t last_steps) {
  Run run;
  std::string damaged;
  for (const fs::path& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      load_file(path, last_steps, run);
    } else if (const std::string why = load_folder(path, last_steps, run); damaged.empty()) {
      damaged = why;
    }
  }
  if (run.unreadable > 0) {
    damaged = fmt::format("{} of the files cannot be read and {} left out; the first: {}", run.unreadable,
                          run.unreadable == 1 ? "was" : "were", printable(damaged));
    run.notes.push_back(damaged);
  }
  if (run.ranks.empty() && !damaged.empty()) fail("there is no record left: {}", damaged);
  if (run.ranks.empty()) {
    fail(
        "there are no records (rank-*.record) in {}; give the folder of one job step, such as $LOCKSTEP_RECORD",
        paths.front().string());
  }
  keep_latest_run(run);
  load_restarts(paths, run);
  if (run.profile && run.profile->written_unix_ns < run.ranks.front().start_unix_ns - kFileTimesLag)
    run.profile.reset();
  std::sort(run.staging.begin(), run.staging.end(),
            [](const auto& a, const auto& b) { return a.node < b.node; });
  return run;
}

std::string milliseconds(double ms) {
  return fmt::format("{:.{}f}", ms, ms >= 99.5 ? 0 : ms >= 9.95 ? 1 : 2);
}

double milliseconds_per_step(const Snapshot& rank, std::uint64_t ns) {
  if (rank.counters.steps == 0) return 0;
  return static_cast<double>(ns) * 1e-6 / static_cast<double>(rank.counters.steps);
}

double step_milliseconds(const Snapshot& rank) {
  return milliseconds_per_step(rank, rank.counters.step_ns);
}

double phase_milliseconds(const Snapshot& rank, Phase phase) {
  return milliseconds_per_step(rank, rank.counters.phase_ns[record::index(phase)]);
}

double own_milliseconds(const Snapshot& rank) {
  return step_milliseconds(rank) - phase_milliseconds(rank, Phase::comm_exposed);
}

double tokens_per_second(const Snapshot& rank) {
  if (rank.counters.step_ns == 0) return 0;
  return static_cast<double>(rank.counters.tokens) * 1e9 / static_cast<double>(rank.counters.step_ns);
}

double tokens_per_second(const Run& run) {
  std::uint64_t tokens = 0;
  std::uint64_t longest_ns = 0;
  for (const Snapshot& rank : run.ranks) {
    tokens += rank.counters.tokens;
    longest_ns = std::max(longest_ns, rank.counters.step_ns);
  }
  return longest_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(longest_ns);
}

double cpus_used(const Snapshot& rank) {
  if (!rank.resources || rank.resources->sampled_ns <= rank.start_monotonic_ns) return 0;
  return static_cast<double>(rank.resources->user_ns + rank.resources->system_ns) /
         static_cast<double>(rank.resources->sampled_ns - rank.start_monotonic_ns);
}

std::vector<StepRow> common_steps(const Run& run) {
  std::map<std::uint64_t, StepRow> rows;
  for (const record::Snapshot& rank : run.ranks) {
    for (const record::Step& step : rank.steps) rows[step.index].push_back(&step);
  }
  std::vector<StepRow> common;
  for (auto& [index, row] : rows) {
    if (row.size() == run.ranks.size()) common.push_back(std::move(row));
  }
  if (common.size() > kFewSteps) {
    std::erase_if(common, [](const StepRow& row) { return row.front()->index < kFirstSteps; });
  }
  return common;
}

std::vector<MemoryUse> memory_use(const Run& run) {
  using Key = std::pair<std::string, std::uint64_t>;
  std::map<Key, MemoryUse> groups;
  std::map<Key, std::uint64_t> shared;
  for (const Snapshot& rank : run.ranks) {
    if (!rank.resources || rank.resources->memory_limit_bytes == 0) continue;
    const Key key{rank.identity.node, rank.resources->memory_group};
    MemoryUse& use = groups[key];
    use.node = rank.identity.node;
    use.ranks.push_back(rank.identity.rank);
    const record::Resources& used = *rank.resources;
    // The limit counts pages of files too, but the kernel gives them up first. Ranks of a node map each other's buckets.
    use.peak += used.memory_peak_bytes -
                std::min(used.memory_peak_bytes, used.memory_file_bytes + used.memory_shared_bytes);
    shared[key] = std::max(shared[key], used.memory_shared_bytes);
    use.limit = rank.resources->memory_limit_bytes;
    use.buffers += rank.resources->loader_buffer_bytes;
    use.of_group = rank.resources->memory_group != 0;
    use.died = use.died || (!rank.alive && rank.finished_unix_ns == 0);
  }
  std::vector<MemoryUse> uses;
  for (auto& [key, use] : groups) {
    use.peak += shared[key];
    uses.push_back(std::move(use));
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const auto& a, const auto& b) { return a.share() > b.share(); });
  return uses;
}

std::string to_text(const MemoryUse& use) {
  const std::string ranks = use.ranks.size() == 1
                                ? fmt::format("{} uses", rank_name(use.ranks.front(), use.node))
                                : fmt::format("the {} ranks on {} use", use.ranks.size(), use.node);
  const std::string batches =
      use.buffers == 0 ? "" : fmt::format("; the loader's batches at most {}", format_bytes(use.buffers));
  return fmt::format("{} up to {} of the {} of {} ({:.0f} %{})", ranks, format_bytes(use.peak),
                     format_bytes(use.limit), use.of_group ? "the job's cgroup" : "the node",
                     100 * use.share(), batches);
}

bool is_full(const MemoryUse& use) {
  return use.share() >= (use.died ? kMemoryFullOfDead : kMemoryFull);
}

Profile read_profile(const std::filesystem::path& file) {
  try {
    Profile profile = parse(nlohmann::json::parse(read_text_file(file)));
    profile.written_unix_ns = modified_unix_ns(file);
    return profile;
  } catch (const nlohmann::json::exception& error) {
    fail("{} is not a profile of lockstep: {}", file.string(), error.what());
  }
}

std::string profile_text(const Profile& profile) {
  std::string text = fmt::format("profile of {}, milliseconds per step, mean of {:.0f} steps of {:.2f} ms:\n",
                                 rank_name(profile.rank, profile.node), profile.steps, profile.step_ms);
  text += fmt::format("{:>9} {:>9} {:>9}  operator\n", "calls", "total", "self");
  for (const auto& one : profile.operators)
    text += fmt::format("{:>9.0f} {:>9.2f} {:>9.2f}  {}\n", one.calls, one.total_ms, one.self_ms, one.name);
  text += device_text(profile);
  if (profile.modules.empty()) return text;
  text += fmt::format("{:>9} {:>9} {:>10} {:>10}  module\n", "forward", "backward", "results", "gradients");
  const std::size_t shown = std::min(profile.modules.size(), kModules);
  for (std::size_t i = 0; i < shown; ++i) {
    const Profile::Module& one = profile.modules[i];
    text += fmt::format("{:>9.2f} {:>9.2f} {:>10} {:>10}  {}\n", one.forward_ms, one.backward_ms,
                        rounded_bytes(one.forward_bytes), rounded_bytes(one.backward_bytes), one.name);
  }
  if (shown < profile.modules.size())
    text += fmt::format("and {} modules that take less time\n", profile.modules.size() - shown);
  return text;
}

}  // namespace lockstep::report
