#include "staging/transfer/put.h"

#include "common/error.h"
#include "staging/transfer/cooperative_put.h"
#include "staging/transfer/new_copy.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

FoundCopy put_one(const PutContext& context, std::size_t number) {
  if (context.options.peers != nullptr) return cooperative_put(*context.options.peers, context, number);
  SourceLookup lookup(context, look_at_source(context));
  return find_or_copy(context, lookup);
}

PutResult result_of(const PutTally& tally, const FoundCopy& copy) {
  PutResult result = tally.result();
  result.path = copy.path;
  result.object = copy.object;
  result.bytes = copy.bytes;
  result.hit = copy.hit;
  result.shared = copy.shared;
  result.version = copy.version;
  return result;
}

}  // namespace

Verify parse_verify(std::string_view text) {
  if (text == "quick") return Verify::quick;
  if (text == "full") return Verify::full;
  if (text == "off") return Verify::off;
  fail_usage("verify '{}' must be quick, full or off", text);
}

std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options) {
  FileSystem& system = options.file_system != nullptr ? *options.file_system : FileSystem::real();
  // Reports a wrong name before anything is copied.
  const auto resolve = [&](const std::string& source) {
    return retry_source(options.source_pause, [&] { return resolve_source(source); });
  };
  for (const std::string& source : sources) resolve(source);
  cache::Store store(fs::absolute(options.cache_dir), options.limits, system);
  store.recover();
  Limit limit(options.bandwidth, store.folder() / "bandwidth");
  std::vector<PutResult> results;
  results.reserve(sources.size());
  for (std::size_t s = 0; s < sources.size(); ++s) {
    PutTally tally(sources[s]);
    const PutContext context{store, system, limit, options, resolve(sources[s]), tally};
    results.push_back(result_of(tally, put_one(context, s)));
    if (options.done) options.done(results.back());
  }
  return results;
}

}  // namespace lockstep::transfer
