#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "common/error.h"
#include "common/leaf/text.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/new_copy.h"
#include "staging/transfer/put.h"
#include "staging/transfer/ring_put.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Messages = std::map<std::uint32_t, json>;
using Contexts = std::vector<const PutContext*>;

// A copy keeps some files open, besides its lock and its journal. The numbers of all fit in one line of the exchange.
std::size_t sources_at_once() {
  constexpr std::size_t kFilesOfSource = 12;
  constexpr std::size_t kOtherFiles = 64;
  constexpr std::size_t kMaxSources = 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxSources;
  const std::size_t files = std::max<std::size_t>(limit.rlim_cur, kOtherFiles + kFilesOfSource);
  return std::min(kMaxSources, files / kFilesOfSource - kOtherFiles / kFilesOfSource);
}

/// What the sources are, as one node saw them.
class Identities {
 public:
  /// This node looks. A source that cannot be seen and that it has staged for the job counts as unchanged.
  static Identities look(const Contexts& contexts) {
    Identities seen;
    seen.manifests_.resize(contexts.size());
    std::vector<json> identities(contexts.size());
    parallel_for(contexts.size(), kManyAtOnce, [&](std::size_t s) {
      const PutContext& context = *contexts[s];
      const auto staged = context.options.staged.find(context.source.name);
      const bool has_copy = staged != context.options.staged.end();
      try {
        check_readable(context);
        const Manifest& manifest = seen.manifests_[s].emplace(look_at_source(context));
        // An array, because all nodes get those of all sources.
        identities[s] = {manifest.object, manifest.packed(), source_version(manifest)};
        if (has_copy && staged->second != source_version(manifest))
          context.tally.note("it changed after an earlier step of this job staged it: it is staged again");
      } catch (const Error& error) {
        if (!has_copy) throw;
        if (context.options.on.notice)
          context.options.on.notice(fmt::format(
              "{}; the step uses the copy that an earlier step of this job has staged", error.what()));
      }
    });
    seen.message_ = identities;
    return seen;
  }

  static Identities from(const json& message, std::uint32_t node) {
    Identities seen;
    seen.message_ = message;
    seen.node_ = node;
    return seen;
  }

  const json& message() const { return message_; }
  /// As source_version(); "" if the source could not be seen.
  std::string version(std::size_t s) const {
    const json& identity = message_.at(s);
    return identity.is_null() ? "" : identity.at(2);
  }
  Manifest manifest(const PutContext& context, std::size_t s, PeerGroup& peers) const {
    if (!manifests_.empty() && manifests_[s]) return *manifests_[s];
    const json& identity = message_.at(s);
    if (identity.is_null())
      fail("{}: {} cannot read it, and a node of the step has no copy", context.source.name,
           node_ ? peers.name(*node_) : "this node");
    check_readable(context);
    return adopt_identity(context, peers.name(*node_), identity.at(0), identity.at(1), identity.at(2));
  }

 private:
  std::vector<std::optional<Manifest>> manifests_;  // if this node has looked
  json message_;
  std::optional<std::uint32_t> node_;
};

/// What the nodes know after the first round.
struct Greeting {
  Identities identities;
  std::size_t at_once = 1;                        ///< sources
  std::set<std::size_t> busy;                     ///< on the first node
  std::vector<std::unique_ptr<SourcePut>> first;  ///< of the first node: those that it has looked for
};

// Whether an earlier step of the job has staged the version that is at the source now.
bool is_staged(const PutContext& context, const std::string& version) {
  const auto staged = context.options.staged.find(context.source.name);
  return staged != context.options.staged.end() && (version.empty() || staged->second == version);
}

/// Some sources that are put together, with all rounds after the first.
class SourceBatch {
 public:
  using Done = std::function<void(const PutContext&, FoundCopy)>;

  /// The sources from number `begin` on. `rings` counts the rings of the step.
  SourceBatch(PeerGroup& peers, std::size_t& rings, const Contexts& all, Greeting& greeting,
              std::size_t begin)
      : peers_(peers),
        rings_(rings),
        identities_(greeting.identities),
        begin_(begin),
        contexts_(all.begin() + static_cast<std::ptrdiff_t>(begin),
                  all.begin() + static_cast<std::ptrdiff_t>(std::min(begin + greeting.at_once, all.size()))),
        sources_(contexts_.size()) {
    if (begin == 0) std::move(greeting.first.begin(), greeting.first.end(), sources_.begin());
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      const PutContext& context = *contexts_[s];
      staged_.push_back(is_staged(context, identities_.version(begin + s)));
      busy_.push_back(greeting.busy.contains(begin + s));
      if (!staged_[s] && context.options.staged.contains(context.source.name) && context.options.on.stale)
        context.options.on.stale(context.source.name);
    }
  }

  void put(const Done& done) {
    for (bool again = true; again;) {
      RingPart part = states();
      parts_ = part.sources;
      if (std::find(parts_.begin(), parts_.end(), SourcePart::unsure) != parts_.end()) {
        for (std::size_t s = 0; s < sources_.size(); ++s) {
          if (parts_[s] == SourcePart::unsure) staged_[s] = false;
        }
        continue;
      }
      run_ring(std::move(part));
      again = agree();
      ring_.reset();  // all nodes have all of it
      std::vector<SourcePut*> lacking = damaged();
      publish(done);
      for (std::size_t s = 0; s < sources_.size(); ++s) {
        if (!left_out(s) && !sources_[s]->is_here()) lacking.push_back(sources_[s].get());
      }
      for (SourcePut* const source : lacking) source->wait();
      busy_.assign(sources_.size(), false);
    }
  }

 private:
  RingPart states() {
    parallel_for(sources_.size(), kManyAtOnce, [&](std::size_t s) {
      if (!staged_[s] && !sources_[s])
        sources_[s] = std::make_unique<SourcePut>(*contexts_[s],
                                                  identities_.manifest(*contexts_[s], begin_ + s, peers_));
    });
    std::string states;
    for (std::size_t s = 0; s < sources_.size(); ++s)
      states += static_cast<char>(staged_[s] ? SourceState::staged : sources_[s]->state(!busy_[s]));
    RingPart part = peers_.rendezvous().states(++rings_, states);
    if (part.sources.size() != sources_.size()) fail("srun's helper named a source that does not exist");
    return part;
  }

  // An earlier step has staged it on this node, and no node needs it.
  bool left_out(std::size_t s) const { return staged_[s] && parts_[s] == SourcePart::none; }

  void run_ring(RingPart part) {
    std::vector<bool> held;
    ring_sources_.clear();
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      if (parts_[s] != SourcePart::held && parts_[s] != SourcePart::read) continue;
      held.push_back(parts_[s] == SourcePart::held);
      ring_sources_.push_back(sources_[s].get());
      // Another process copies it on this node, but not on all.
      if (sources_[s]->state(false) == SourceState::busy) sources_[s]->copy_anyway(peers_.step());
    }
    if (ring_sources_.empty()) return;
    ring_ = std::make_unique<RingPut>(peers_, rings_, std::move(part), ring_sources_, held);
    ring_->run();
  }

  // Returns whether there is another ring. If no index tells which bytes are right and the nodes got different ones, no node
  // publishes its copy. Holders have checked theirs, so it is the source that changed.
  bool agree() {
    if (std::all_of(parts_.begin(), parts_.end(), [](SourcePart part) { return part == SourcePart::none; }))
      return false;
    std::string digests;
    bool complete = true;
    for (const SourcePut* const source : ring_sources_) {
      complete = complete && (source->is_here() || source->needed());
      digests += source->content();
    }
    if (!complete) digests.clear();
    if (!digests.empty()) digests = pack::to_hex(pack::digest_of(std::as_bytes(std::span(digests))));
    const std::vector<Suspect> suspects = ring_ ? ring_->suspects() : std::vector<Suspect>();
    const bool lacks = !complete || !suspects.empty() ||
                       std::find(parts_.begin(), parts_.end(), SourcePart::busy) != parts_.end();
    Contents contents;
    try {
      contents = peers_.rendezvous().contents(rings_, digests, lacks, suspects);
      for (const auto& [node, source] : contents.suspects) {
        if (node == peers_.self() && source < ring_sources_.size()) ring_sources_[source]->suspect();
      }
      // A lost node may have read a file that changed meanwhile, and did not find that out.
      for (const SourcePut* const source : ring_sources_) {
        if (contents.lost && source->needed()) source->copy().check_source_again();
      }
    } catch (const Error&) {  // other nodes failed, the source cannot be reached, or the disk is bad
      for (const auto& source : sources_) {
        if (source) source->keep();
      }
      throw;
    }
    if (!contents.equal) fail_different();
    return contents.again;
  }

  [[noreturn]] void fail_different() const {
    std::vector<std::string> names;
    for (const SourcePut* const source : ring_sources_) {
      if (!source->content().empty()) names.push_back(source->context().source.name);
    }
    fail(
        "{}: the nodes got different bytes: stage again when nobody writes to the sources, or pack them, so that an index can tell which bytes are right",
        names.size() > 8 ? fmt::format("{} sources", names.size()) : join(names, ", "));
  }

  std::vector<SourcePut*> damaged() {
    std::vector<SourcePut*> damaged;
    for (const auto& source : sources_) {
      if (source && source->remove_if_damaged()) damaged.push_back(source.get());
    }
    return damaged;
  }

  // Other steps may wait for these copies, so they are published before this node waits for theirs.
  void publish(const Done& done) {
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      if (left_out(s)) continue;
      SourcePut& source = *sources_[s];
      if (source.is_taken() || !(source.is_here() || source.needed())) continue;
      done(source.context(), source.take_result());
    }
  }

  PeerGroup& peers_;
  std::size_t& rings_;
  const Identities& identities_;
  const std::size_t begin_;
  Contexts contexts_;
  // Made when they are looked for: a source that all nodes have staged may not be there any longer.
  std::vector<std::unique_ptr<SourcePut>> sources_;
  std::vector<bool> staged_;  // an earlier step has staged the source here
  // Another process copies it on the first node, so its lock is not taken here either: two steps that begin together would
  // each get some nodes' locks.
  std::vector<bool> busy_;
  std::vector<SourcePart> parts_;
  std::vector<SourcePut*> ring_sources_;
  std::unique_ptr<RingPut> ring_;
};

// One node looks at the sources for all, because file times may differ between clients of one file system: the first node;
// if it has left, the next one. After three nodes the step fails: a thousand nodes would look in turn.
Identities identify(PeerGroup& peers, const Contexts& contexts, Messages& hellos,
                    std::optional<Identities> own) {
  for (const auto& [node, hello] : hellos) {
    if (hello.contains("sources"))
      return node == peers.self() ? std::move(*own) : Identities::from(hello.at("sources"), node);
  }
  int looks = 3;
  for (const auto& [node, hello] : hellos) {
    if (looks-- == 0) break;
    json message{{"none", 1}};
    if (node == peers.self()) {
      own = Identities::look(contexts);
      message = {{"sources", own->message()}};
    }
    const Messages seen = peers.gather(fmt::format("identify:{}", node), std::move(message));
    if (node == peers.self()) return std::move(*own);
    if (const auto found = seen.find(node); found != seen.end() && found->second.contains("sources"))
      return Identities::from(found->second.at("sources"), node);
  }
  fail("{}: no node of the step can look at the sources", contexts.front()->source.name);
}

Greeting greet(PeerGroup& peers, const Contexts& contexts) {
  Greeting greeting;
  std::optional<Identities> own;
  greeting.at_once = sources_at_once();
  json message{{"at_once", greeting.at_once}};
  if (peers.self() == 0) {
    own = Identities::look(contexts);
    message["sources"] = own->message();
    json busy = json::array();
    greeting.first.resize(std::min(contexts.size(), greeting.at_once));
    for (std::size_t s = 0; s < greeting.first.size(); ++s) {
      if (is_staged(*contexts[s], own->version(s))) continue;
      greeting.first[s] = std::make_unique<SourcePut>(*contexts[s], own->manifest(*contexts[s], s, peers));
      if (greeting.first[s]->state(true) == SourceState::busy) busy.push_back(s);
    }
    message["busy"] = std::move(busy);
  }
  Messages hellos = peers.hello(std::move(message));
  for (const auto& [node, other] : hellos) {
    greeting.at_once = std::min(greeting.at_once, other.at("at_once").get<std::size_t>());
    for (const std::size_t s : other.value("busy", std::vector<std::size_t>())) greeting.busy.insert(s);
  }
  greeting.first.resize(std::min(greeting.first.size(), greeting.at_once));
  greeting.identities = identify(peers, contexts, hellos, std::move(own));
  return greeting;
}

// On all nodes of a step, which agree in few rounds, whatever the number of sources:
//
//   hello      the releases of all nodes; the first node says what each source is, and which ones another process copies there
//   identify   only if the first node has left: what the next one sees
//   states     each says whether it has a source already, needs it, or another process copies it there; it learns its
//              predecessor, and whether a node has each source
//   contents   each has all its chunks; it gives one digest of what it got, and says whether it still lacks a source
//
// If a node still lacks a source, because another process copied it there or its own copy was damaged, it waits for the other
// process, holding no lock, and there is another ring with its two rounds. Very many sources are put in groups, because each
// one needs some open files; each group has its two rounds.
void cooperative_put(PeerGroup& peers, const Contexts& all, const SourceBatch::Done& done) {
  Greeting greeting = greet(peers, all);
  std::size_t rings = 0;
  for (std::size_t begin = 0; begin < all.size(); begin += greeting.at_once)
    SourceBatch(peers, rings, all, greeting, begin).put(done);
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
    PutResult& result = results.emplace_back(context.tally.result());
    static_cast<CopyFacts&>(result) = copy;
    if (options.on.done) options.on.done(results.back());
  };
  std::deque<PutTally> tallies;
  std::deque<PutContext> contexts;
  Contexts all;
  for (Source& source : resolved) {
    PutTally& tally = tallies.emplace_back(source.name);
    const PutContext& context =
        contexts.emplace_back(PutContext{store, system, limit, resources, options, std::move(source), tally});
    all.push_back(&context);
    if (options.peers != nullptr) continue;
    SourceLookup lookup(context, look_at_source(context));
    done(context, find_or_copy(context, lookup));
  }
  if (options.peers != nullptr) cooperative_put(*options.peers, all, done);
  return results;
}

}  // namespace lockstep::transfer
