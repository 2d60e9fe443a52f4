#include "exporters/staging_record.h"

#include <fcntl.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr std::size_t kMaxSources = 1000;
constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxReason = 200;  // the parser's message holds what it read last

// A record without a state was written when staging was done. An unknown state comes from a later version.
StagingState state_of(const std::string& word) {
  const auto found = std::find(kStagingStates.begin(), kStagingStates.end(), word);
  if (found == kStagingStates.end()) return StagingState::done;
  return static_cast<StagingState>(found - kStagingStates.begin());
}

std::uint64_t count_of(const nlohmann::json& entry, const char* key) {
  const nlohmann::json& value = entry.at(key);
  if (!value.is_number_unsigned()) fail("'{}' is not a number of bytes", key);
  return value.get<std::uint64_t>();
}

StagingRecord parse(const std::string& text, const std::string& name) {
  try {
    // A megabyte of brackets would take 80 MB.
    const auto check_depth = [](int depth, nlohmann::json::parse_event_t /*event*/,
                                nlohmann::json& /*value*/) {
      if (depth > kMaxDepth) fail("it is nested deeper than {} levels", kMaxDepth);
      return true;
    };
    const nlohmann::json json = nlohmann::json::parse(text, check_depth);
    StagingRecord record;
    record.node = json.value("node", "");
    record.state = state_of(json.value("state", ""));
    for (const nlohmann::json& entry : json.at("sources")) {
      if (record.sources.size() == kMaxSources) break;
      record.sources.push_back({.source = entry.at("source").get<std::string>(),
                                .bytes = count_of(entry, "bytes"),
                                .done = count_of(entry, entry.contains("done") ? "done" : "bytes"),
                                .from_source = count_of(entry, "from_source"),
                                .from_peers = count_of(entry, "from_peers"),
                                .hit = entry.at("hit").get<bool>(),
                                .seconds = entry.at("seconds").get<double>()});
    }
    return record;
  } catch (const std::exception& error) {
    fail("{} is not what lockstep-stage writes: {}", name, printable(error.what(), kMaxReason));
  }
}

}  // namespace

std::size_t StagingRecord::hits() const {
  std::size_t hits = 0;
  for (const StagedSource& source : sources) hits += source.hit ? 1 : 0;
  return hits;
}

std::optional<StagingRecord> read_staging_record(int folder, const std::string& name) {
  const UniqueFd fd(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::nullopt;
  if (!fd) fail_errno("cannot open {}", name);
  return parse(read_untrusted_file(fd, kMaxBytes, name), name);
}

std::optional<StagingRecord> read_staging_record(const std::filesystem::path& path) {
  return read_staging_record(AT_FDCWD, path.string());
}

}  // namespace lockstep
