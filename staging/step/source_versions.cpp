#include "staging/step/source_versions.h"

#include "common/error.h"
#include "staging/transfer/copy/source_retry.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

SourceVersions SourceVersions::of(const std::vector<std::string>& sources,
                                  const std::vector<PutResult>& staged, Look look,
                                  const std::function<void(const std::string&)>& say) {
  SourceVersions versions;
  versions.sources_ = sources;
  versions.staged_.resize(sources.size());
  versions.seen_.resize(sources.size());
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
  if (!staged) return true;
  return !seen_[source].empty() && *staged != seen_[source];
}

std::vector<std::string> SourceVersions::changed() const {
  std::vector<std::string> sources;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (staged_[s] && must_put(staged_[s], s)) sources.push_back(sources_[s]);
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

}  // namespace lockstep::transfer
