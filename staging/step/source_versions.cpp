#include "staging/step/source_versions.h"

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "staging/transfer/copy/source_retry.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

using nlohmann::json;

SourceVersions SourceVersions::of(const std::vector<std::string>& sources,
                                  const std::vector<PutResult>& staged, Look look,
                                  const std::function<void(const std::string&)>& say) {
  SourceVersions versions;
  versions.sources_ = sources;
  versions.staged_.resize(sources.size());
  if (look != Look::none) versions.seen_.resize(sources.size());
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (const PutResult& result : staged) {
      if (result.source == sources[s]) versions.staged_[s] = result.version;
    }
    if (look != Look::now || !versions.staged_[s]) continue;
    try {
      versions.seen_[s] =
          retry_source(kSourcePause, [&] { return source_version(look_at(resolve_source(sources[s]))); });
    } catch (const std::exception& error) {
      say(fmt::format("{}; the step uses the copy that an earlier step of this job has staged",
                      error.what()));
      continue;
    }
    // A job of an earlier release has no version there.
    if (!versions.staged_[s]->empty() && versions.must_put(versions.staged_[s], s))
      say(fmt::format("{} changed after an earlier step of this job staged it: it is staged again",
                      sources[s]));
  }
  return versions;
}

// Without a look, putting the source finds out.
bool SourceVersions::must_put(const std::optional<std::string>& staged, std::size_t source) const {
  if (!staged || seen_.empty()) return true;
  return !seen_[source].empty() && *staged != seen_[source];
}

std::vector<std::string> SourceVersions::changed() const {
  std::vector<std::string> sources;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (staged_[s] && !seen_.empty() && must_put(staged_[s], s)) sources.push_back(sources_[s]);
  }
  return sources;
}

std::vector<std::string> SourceVersions::missing() const {
  std::vector<std::string> sources;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (must_put(staged_[s], s)) sources.push_back(sources_[s]);
  }
  return sources;
}

json SourceVersions::to_json() const {
  json staged = json::array();
  for (const std::optional<std::string>& version : staged_)
    staged.push_back(version ? json(*version) : json());
  return {{"staged", std::move(staged)}, {"seen", seen_}};
}

std::vector<std::string> SourceVersions::missing_on(const std::map<std::uint32_t, json>& nodes) {
  // A node that has not staged a source has not looked at it either: then it puts it, and all others do.
  for (const auto& [node, message] : nodes) {
    const auto seen = message.at("seen").get<std::vector<std::string>>();
    if (!seen.empty()) seen_ = seen;
  }
  std::vector<bool> wanted(sources_.size(), false);
  for (const auto& [node, message] : nodes) {
    const json& staged = message.at("staged");
    if (staged.size() != sources_.size()) fail("the nodes of the step were given different sources");
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      const json& version = staged[s];
      wanted[s] = wanted[s] ||
                  must_put(version.is_null() ? std::nullopt : std::optional(version.get<std::string>()), s);
    }
  }
  std::vector<std::string> all;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (wanted[s]) all.push_back(sources_[s]);
  }
  return all;
}

}  // namespace lockstep::transfer
