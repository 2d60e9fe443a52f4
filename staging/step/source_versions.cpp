#include "staging/step/source_versions.h"

#include "common/error.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

std::vector<std::string> changed_sources(const std::vector<PutResult>& staged,
                                         const std::function<void(const std::string&)>& say) {
  std::vector<std::string> changed;
  for (const PutResult& result : staged) {
    try {
      const std::string now =
          retry_source(kSourcePause, [&] { return source_version(look_at(resolve_source(result.source))); });
      if (now == result.version) continue;
      say(fmt::format("{} changed after an earlier step of this job staged it: it is staged again",
                      result.source));
      changed.push_back(result.source);
    } catch (const std::exception& error) {
      say(fmt::format("{}; the step uses the copy that an earlier step of this job has staged",
                      error.what()));
    }
  }
  return changed;
}

}  // namespace lockstep::transfer
