#include "staging/transfer/put.h"

#include <deque>
#include <memory>

#include "common/error.h"
#include "staging/transfer/cooperative_put.h"
#include "staging/transfer/new_copy.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

FoundCopy put_one(const PutContext& context) {
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
  std::vector<Source> resolved;
  for (const std::string& source : sources)
    resolved.push_back(retry_source(options.source_pause, [&] { return resolve_source(source); }));
  cache::Store store(fs::absolute(options.cache_dir), options.limits, system);
  store.recover();
  Limit limit(options.bandwidth, store.folder() / "bandwidth");
  PutResources resources(options);
  std::vector<PutResult> results;
  results.reserve(sources.size());
  const auto done = [&](const PutContext& context, const FoundCopy& copy) {
    results.push_back(result_of(context.tally, copy));
    if (options.on.done) options.on.done(results.back());
  };
  std::deque<PutTally> tallies;
  std::vector<std::unique_ptr<PutContext>> contexts;
  for (Source& source : resolved) {
    PutTally& tally = tallies.emplace_back(source.name);
    contexts.push_back(std::make_unique<PutContext>(
        PutContext{store, system, limit, resources, options, std::move(source), tally}));
    if (options.peers == nullptr) done(*contexts.back(), put_one(*contexts.back()));
  }
  if (options.peers != nullptr) cooperative_put(*options.peers, contexts, done);
  return results;
}

}  // namespace lockstep::transfer
