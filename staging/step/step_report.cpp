#include "staging/step/step_report.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/json_bytes.h"
#include "common/leaf/source_name.h"
#include "common/units.h"

namespace lockstep::transfer {

void print_for_job(const std::string& text) {
  const std::string line = "lockstep: " + text + "\n";
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string summary(const std::vector<PutResult>& results) {
  std::string names;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::size_t hits = 0;
  for (const PutResult& result : results) {
    names += (names.empty() ? "" : ", ") + entry_name(result.source);
    bytes += result.bytes;
    seconds += result.seconds;
    hits += result.hit ? 1 : 0;
  }
  std::string how = "miss";
  if (hits == results.size()) how = "hit";
  if (hits > 0 && hits < results.size()) how = fmt::format("{} of {} hit", hits, results.size());
  return fmt::format("staged {}: {} in {} ({})", names, format_bytes(bytes), format_seconds(seconds), how);
}

namespace {

nlohmann::json to_json(const std::vector<PutResult>& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const PutResult& result : results) {
    list.push_back({{"source", result.source},
                    {"path", result.path.string()},
                    {"object", result.object},
                    {"bytes", result.bytes},
                    {"from_source", result.from_source},
                    {"from_peers", result.from_peers},
                    {"hit", result.hit},
                    {"shared", result.shared},
                    {"version", result.version},
                    {"seconds", result.seconds}});
  }
  return list;
}

}  // namespace

std::string staged_to_text(const std::vector<PutResult>& results) {
  nlohmann::json list = to_json(results);
  for (nlohmann::json& value : list) {
    for (const char* key : {"source", "path"}) {
      const std::string bytes = value.at(key);
      value.erase(key);
      put_bytes(value, key, bytes);
    }
  }
  return list.dump();
}

std::vector<PutResult> staged_from_text(const std::string& text) {
  std::vector<PutResult> results;
  try {
    for (const nlohmann::json& value : nlohmann::json::parse(text)) {
      PutResult result;
      result.source = bytes_in(value, "source");
      result.path = bytes_in(value, "path");
      result.object = value.at("object");
      result.bytes = value.at("bytes");
      result.from_source = value.at("from_source");
      result.from_peers = value.at("from_peers");
      result.hit = value.at("hit");
      result.shared = value.value("shared", false);
      result.seconds = value.at("seconds");
      result.version = value.value("version", "");
      results.push_back(std::move(result));
    }
  } catch (const nlohmann::json::exception& error) {
    fail("the job's list of staged sources is damaged: {}", error.what());
  }
  return results;
}

void write_staging_record(const std::filesystem::path& folder, const Hello& hello, const std::string& state,
                          const std::vector<PutResult>& results, std::optional<std::uint64_t> done) {
  double seconds = 0;
  for (const PutResult& result : results) seconds += result.seconds;
  nlohmann::json sources = to_json(results);
  for (nlohmann::json& source : sources)
    source["done"] = done.value_or(source.at("bytes").get<std::uint64_t>());
  const nlohmann::json text{
      {"version", 1},   {"job", hello.job},   {"step", hello.step},           {"node", hello.node},
      {"state", state}, {"seconds", seconds}, {"sources", std::move(sources)}};
  constexpr mode_t kForTheGroup = 0640;
  write_file_atomically(folder / "staging.json",
                        text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n",
                        kForTheGroup);
}

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

}  // namespace

void StepProgress::update(const std::string& source, const PutProgress& now) {
  const std::lock_guard lock(mutex_);
  if (done_) return;
  const std::uint64_t time = monotonic_ns();
  const auto [begun, first] = begun_ns_.try_emplace(source, time);
  if (begun_ns_.size() == 1 && first) told_ns_ = time;
  const double seconds = seconds_between(begun->second, time);
  if (tell_ && time - told_ns_ >= static_cast<std::uint64_t>(tell_every_.count())) {
    told_ns_ = time;
    tell_({entry_name(source), now.done, now.total, seconds});
  }
  if (time - written_ns_ < kSecond) return;
  written_ns_ = time;
  PutResult so_far;
  so_far.source = source;
  so_far.bytes = now.total;
  so_far.from_source = now.from_source;
  so_far.from_peers = now.from_peers;
  so_far.seconds = seconds;
  write("staging", {so_far}, now.done);
}

void StepProgress::done(const std::string& state, const std::vector<PutResult>& results) {
  const std::lock_guard lock(mutex_);
  done_ = true;
  write(state, results);
}

void StepProgress::failed() {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
  }
  done("failed", {});
}

void StepProgress::write(const std::string& state, const std::vector<PutResult>& results,
                         std::optional<std::uint64_t> bytes_done) {
  if (folder_.empty()) return;
  try {
    write_staging_record(folder_, hello_, state, results, bytes_done);
  } catch (const Error& error) {
    // The data matters more than its record.
    print_for_job(fmt::format("{}: cannot write the record of staging: {}", hello_.node, error.what()));
    folder_.clear();
  }
}

}  // namespace lockstep::transfer
