#include "staging/transfer/cooperative_put.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "common/error.h"
#include "staging/rendezvous/node_names.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/ring_put.h"
#include "staging/transfer/source_put.h"

namespace lockstep::transfer {
namespace {

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

// An array, because all nodes get those of all sources.
json identity_json(const Manifest& manifest) {
  return {manifest.object, manifest.packed(), source_version(manifest)};
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
        seen.manifests_[s] = look_at_source(context);
        identities[s] = identity_json(*seen.manifests_[s]);
        if (has_copy && staged->second != source_version(*seen.manifests_[s]))
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
    return adopt_identity(context, {.node = peers.name(*node_),
                                    .object = identity.at(0),
                                    .packed = identity.at(1),
                                    .version = identity.at(2)});
  }

 private:
  std::vector<std::optional<Manifest>> manifests_;  // if this node has looked
  json message_;
  std::optional<std::uint32_t> node_;
};

/// Some sources that are put together, with all rounds after the first.
class SourceBatch {
 public:
  using Done = std::function<void(const PutContext&, FoundCopy)>;
  using Make = std::function<std::unique_ptr<SourcePut>(std::size_t s)>;

  /// `sources` may be null; they are made when they are looked for: a source that all nodes have staged may not be there any
  /// longer. `staged`: an earlier step has staged the source here. `busy`: another process copies it on the first node, so its lock is
  /// not taken here either: two steps that begin together would each get some nodes' locks. `rings` counts the rings of the
  /// step.
  SourceBatch(PeerGroup& peers, std::size_t& rings, std::vector<std::unique_ptr<SourcePut>> sources,
              Make make, std::vector<bool> staged, std::vector<bool> busy)
      : peers_(peers),
        rings_(rings),
        sources_(std::move(sources)),
        make_(std::move(make)),
        staged_(std::move(staged)),
        busy_(std::move(busy)) {}

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
      if (!staged_[s] && !sources_[s]) sources_[s] = make_(s);
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

  [[noreturn]] void fail_different() {
    json own = json::array();
    for (const SourcePut* const source : ring_sources_) own.push_back(source->content());
    const Messages all = peers_.gather(fmt::format("details:{}", rings_), std::move(own));
    for (std::size_t s = 0; s < ring_sources_.size(); ++s) {
      std::map<std::string, std::vector<std::string>> nodes;  // by what they got
      for (const auto& [node, contents] : all) {
        const std::string content = contents.at(s);
        if (!content.empty()) nodes[content].push_back(peers_.name(node));
      }
      if (nodes.size() < 2) continue;
      std::string groups;
      for (const auto& [content, names] : nodes) groups += (groups.empty() ? "" : "; ") + join_names(names);
      fail(
          "{}: the nodes got different bytes ({}): stage it again when nobody writes to it, or pack it, so that an index can tell which of them are right",
          ring_sources_[s]->context().source.name, groups);
    }
    fail("the nodes got different bytes: stage again when nobody writes to the sources");
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
  std::vector<std::unique_ptr<SourcePut>> sources_;
  Make make_;
  std::vector<bool> staged_;
  std::vector<bool> busy_;
  std::vector<SourcePart> parts_;
  std::vector<SourcePut*> ring_sources_;
  std::unique_ptr<RingPut> ring_;
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

}  // namespace

void cooperative_put(PeerGroup& peers, const std::vector<std::unique_ptr<PutContext>>& contexts,
                     const std::function<void(const PutContext& context, FoundCopy copy)>& done) {
  Contexts all;
  for (const auto& context : contexts) all.push_back(context.get());
  Greeting greeting = greet(peers, all);
  std::size_t rings = 0;
  for (std::size_t begin = 0; begin < all.size(); begin += greeting.at_once) {
    const std::size_t count = std::min(greeting.at_once, all.size() - begin);
    std::vector<std::unique_ptr<SourcePut>> sources(count);
    if (begin == 0) std::move(greeting.first.begin(), greeting.first.end(), sources.begin());
    std::vector<bool> staged(count);
    std::vector<bool> busy(count);
    for (std::size_t i = 0; i < count; ++i) {
      const PutContext& context = *all[begin + i];
      const std::string seen = greeting.identities.version(begin + i);
      staged[i] = is_staged(context, seen);
      busy[i] = greeting.busy.contains(begin + i);
      if (!staged[i] && context.options.staged.contains(context.source.name) && context.options.on.stale)
        context.options.on.stale(context.source.name);
    }
    const auto make = [&](std::size_t i) {
      return std::make_unique<SourcePut>(*all[begin + i],
                                         greeting.identities.manifest(*all[begin + i], begin + i, peers));
    };
    SourceBatch(peers, rings, std::move(sources), make, std::move(staged), std::move(busy)).put(done);
  }
}

}  // namespace lockstep::transfer
