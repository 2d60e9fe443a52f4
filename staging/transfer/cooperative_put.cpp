#include "staging/transfer/cooperative_put.h"

#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "staging/rendezvous/node_names.h"
#include "staging/transfer/chain_put.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/source_put.h"

namespace lockstep::transfer {
namespace {

using nlohmann::json;
using Messages = std::map<std::uint32_t, json>;
using Contexts = std::vector<const PutContext*>;

// A copy keeps some files open, besides its lock and its journal.
std::size_t sources_at_once() {
  constexpr std::size_t kFilesOfSource = 12;
  constexpr std::size_t kOtherFiles = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1U << 16U;
  return std::max<std::size_t>(limit.rlim_cur, kOtherFiles + kFilesOfSource) / kFilesOfSource -
         kOtherFiles / kFilesOfSource;
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
    parallel_for(contexts.size(), kManyAtOnce, [&](std::size_t s, const std::function<bool()>&) {
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
  SourceBatch(PeerGroup& peers, std::size_t batch, const Contexts& contexts,
              const std::vector<Manifest>& manifests)
      : peers_(peers), batch_(batch) {
    for (std::size_t s = 0; s < contexts.size(); ++s)
      sources_.push_back(std::make_unique<SourcePut>(*contexts[s], manifests[s]));
  }

  void put(const std::function<void(const PutContext&, FoundCopy)>& done) {
    std::string states;
    for (const auto& source : sources_) states += static_cast<char>(source->find());
    parts_ = peers_.rendezvous().chains(states, batch_);
    chains_.resize(parts_.size());
    run_chains();
    Messages contents;
    try {
      contents = peers_.gather(fmt::format("contents:{}", batch_), contents_message());
    } catch (const Error&) {  // other nodes failed
      for (const auto& source : sources_) source->keep();
      throw;
    }
    const bool late = std::any_of(contents.begin(), contents.end(),
                                  [](const auto& message) { return message.second.contains("late"); });
    if (!late) chains_.clear();
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      check_equal(contents, s);
      remove_if_damaged(s);
    }
    // Other steps may wait for these copies, so they are published before this node waits for theirs.
    for (const auto& source : sources_) {
      if (source->is_here() || source->needed()) done(source->context(), source->take_result());
    }
    if (late) catch_up();
    for (const auto& source : sources_) {
      if (!source->is_taken()) done(source->context(), source->take_result());
    }
    if (late) peers_.gather(fmt::format("end:{}", batch_), json::object());
    chains_.clear();
  }

 private:
  // Chains do not wait for each other: a node of one chain may be slow.
  void run_chains() {
    std::vector<ChainPut*> running;
    for (std::size_t c = 0; c < parts_.size(); ++c) {
      for (const std::size_t s : parts_[c].sources) {
        if (s >= sources_.size()) fail("srun's helper named a source that does not exist");
      }
      if (parts_[c].in_ring()) running.push_back(&join(c));
    }
    parallel_for(running.size(), static_cast<int>(running.size()),
                 [&](std::size_t c, const std::function<bool()>&) { running[c]->run(); });
  }

  ChainPut& join(std::size_t c) {
    std::vector<SourcePut*> sources;
    for (const std::size_t s : parts_[c].sources) sources.push_back(sources_[s].get());
    chains_[c] = std::make_unique<ChainPut>(peers_, batch_, parts_[c], std::move(sources));
    return *chains_[c];
  }

  // Waits for the copies of other processes. If one of them never comes, or this node's own was damaged, gets the data from
  // the nodes of its chain, which serve it until the last round.
  void catch_up() {
    for (std::size_t c = 0; c < parts_.size(); ++c) {
      bool all = true;
      for (const std::size_t s : parts_[c].sources) {
        if (!sources_[s]->is_here()) sources_[s]->wait();
        all = all && sources_[s]->is_here();
      }
      const bool withdrawn = parts_[c].in_ring() && !chains_[c];
      if (!all || withdrawn) join(c).run();
    }
  }

  json contents_message() const {
    json contents = json::object();
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      if (const std::string content = sources_[s]->content(); !content.empty())
        contents[std::to_string(s)] = content;
    }
    const bool waits =
        std::any_of(parts_.begin(), parts_.end(), [](const ChainPart& part) { return !part.in_ring(); });
    const bool lacked = std::any_of(chains_.begin(), chains_.end(),
                                    [](const auto& chain) { return chain && chain->predecessor_lacked(); });
    json message = json::object();
    if (!contents.empty()) message["contents"] = std::move(contents);
    if (waits || lacked) message["late"] = 1;
    return message;
  }

  // If no index tells which bytes are right, no node publishes its copy. Holders have checked theirs, so it is the source
  // that changed.
  void check_equal(const Messages& messages, std::size_t s) {
    std::map<std::string, std::vector<std::string>> nodes;  // by what they got
    const std::string number = std::to_string(s);
    for (const auto& [node, message] : messages) {
      const json contents = message.value("contents", json::object());
      if (contents.contains(number))
        nodes[contents.at(number).get<std::string>()].push_back(peers_.name(node));
    }
    if (nodes.size() < 2) return;
    std::string groups;
    for (const auto& [content, names] : nodes) groups += (groups.empty() ? "" : "; ") + join_names(names);
    fail(
        "{}: the nodes got different bytes ({}): stage it again when nobody writes to it, or pack it, so that an index can tell which of them are right",
        sources_[s]->context().source.name, groups);
  }

  // This node serves it until then, and gets it from the other nodes afterwards.
  void remove_if_damaged(std::size_t s) {
    if (!sources_[s]->damaged()) return;
    for (std::size_t c = 0; c < chains_.size(); ++c) {
      if (std::binary_search(parts_[c].sources.begin(), parts_[c].sources.end(), s)) chains_[c].reset();
    }
    sources_[s]->remove_if_damaged();
  }

  PeerGroup& peers_;
  std::size_t batch_;
  std::vector<std::unique_ptr<SourcePut>> sources_;
  std::vector<ChainPart> parts_;
  std::vector<std::unique_ptr<ChainPut>> chains_;  // of each part
};

/// What the nodes know after the first round.
struct Greeting {
  Identities identities;
  std::vector<bool> wanted;  ///< by source
  std::size_t at_once = 1;   ///< sources
};

// One node looks at the sources for all, because file times may differ between clients of one file system: the first node;
// if it has left, the next one; finally this node.
Identities identify(PeerGroup& peers, const Contexts& contexts, Messages& hellos,
                    std::optional<Identities> own) {
  for (const auto& [node, hello] : hellos) {
    if (hello.contains("sources"))
      return node == peers.self() ? std::move(*own) : Identities::from(hello.at("sources"), node);
  }
  for (const auto& [node, hello] : hellos) {
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
  fail("{}: no node of the step can read it", contexts.front()->source.name);
}

Greeting greet(PeerGroup& peers, const Contexts& contexts) {
  json staged = json::array();
  for (const PutContext* const context : contexts) {
    const auto version = context->options.staged.find(context->source.name);
    staged.push_back(version == context->options.staged.end() ? json() : json(version->second));
  }
  std::optional<Identities> own;
  json message{{"at_once", sources_at_once()}};
  if (!contexts.empty() && !contexts.front()->options.staged.empty()) message["staged"] = std::move(staged);
  if (peers.self() == 0) {
    own = Identities::look(contexts);
    message["sources"] = own->message();
  }
  Messages hellos = peers.hello(std::move(message));
  Greeting greeting{.identities = identify(peers, contexts, hellos, std::move(own)),
                    .wanted = std::vector<bool>(contexts.size(), false),
                    .at_once = sources_at_once()};
  for (const auto& [node, other] : hellos) {
    const json versions = other.value("staged", std::vector<json>(contexts.size()));
    if (versions.size() != contexts.size()) fail("the nodes of the step were given different sources");
    greeting.at_once = std::min(greeting.at_once, other.at("at_once").get<std::size_t>());
    for (std::size_t s = 0; s < contexts.size(); ++s) {
      const std::string seen = greeting.identities.version(s);
      if (versions[s].is_null() || (!seen.empty() && versions[s] != seen)) greeting.wanted[s] = true;
    }
  }
  return greeting;
}

}  // namespace

void cooperative_put(PeerGroup& peers, const std::vector<std::unique_ptr<PutContext>>& contexts,
                     const std::function<void(const PutContext& context, FoundCopy copy)>& done) {
  Contexts all;
  for (const auto& context : contexts) all.push_back(context.get());
  const Greeting greeting = greet(peers, all);
  Contexts wanted;
  std::vector<std::size_t> numbers;
  for (std::size_t s = 0; s < all.size(); ++s) {
    if (!greeting.wanted[s]) continue;
    const PutOptions& options = all[s]->options;
    const auto staged = options.staged.find(all[s]->source.name);
    const std::string seen = greeting.identities.version(s);
    if (staged != options.staged.end() && !seen.empty() && staged->second != seen && options.on.stale)
      options.on.stale(all[s]->source.name);
    wanted.push_back(all[s]);
    numbers.push_back(s);
  }
  for (std::size_t begin = 0; begin < wanted.size(); begin += greeting.at_once) {
    const std::size_t end = std::min(begin + greeting.at_once, wanted.size());
    std::vector<std::optional<Manifest>> found(end - begin);
    parallel_for(end - begin, kManyAtOnce, [&](std::size_t i, const std::function<bool()>&) {
      found[i] = greeting.identities.manifest(*wanted[begin + i], numbers[begin + i], peers);
    });
    std::vector<Manifest> manifests;
    for (std::optional<Manifest>& manifest : found) manifests.push_back(std::move(*manifest));
    const Contexts part(wanted.begin() + static_cast<std::ptrdiff_t>(begin),
                        wanted.begin() + static_cast<std::ptrdiff_t>(end));
    SourceBatch(peers, begin, part, manifests).put(done);
  }
}

}  // namespace lockstep::transfer
