#include "staging/transfer/cooperative_put.h"

#include <algorithm>
#include <set>

#include "common/error.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/exchange/arrivals.h"
#include "staging/transfer/exchange/chunk_shares.h"
#include "staging/transfer/exchange/subscription.h"
#include "staging/transfer/new_copy.h"

namespace lockstep::transfer {
namespace {

using nlohmann::json;

std::shared_ptr<const std::string> shared_list(const Manifest& manifest, const std::filesystem::path& files) {
  return std::make_shared<const std::string>(list_text(manifest, files));
}

/// One source at one node of the group.
class CooperativePut {
 public:
  CooperativePut(PeerGroup& peers, const PutContext& context, std::size_t topic)
      : peers_(peers), context_(context), topic_(topic) {}
  ~CooperativePut() { peers_.exchange().withdraw(topic_); }
  CooperativePut(const CooperativePut&) = delete;
  CooperativePut& operator=(const CooperativePut&) = delete;

  FoundCopy run();

 private:
  Manifest agree_on_source();
  std::optional<Manifest> adopt_from_first();
  void announce(const char* state, std::shared_ptr<const std::string> list);
  std::optional<std::string> get_list_from(std::uint32_t node);
  std::optional<std::string> pass_on_list();
  std::vector<std::uint32_t> predecessors() const;
  BegunCopy begin(CopyLock lock);
  void exchange_chunks(Copy& copy);
  Subscription subscription(Copy& copy, Arrivals& arrivals);
  std::map<std::uint32_t, json> end();
  void settle(const std::map<std::uint32_t, json>& ends);
  std::string round(const char* name) const { return fmt::format("{}:{}", name, topic_); }

  PeerGroup& peers_;
  const PutContext& context_;
  std::size_t topic_;

  std::uint32_t first_ = 0;       // the node that looks at the source for all
  std::uint64_t list_bytes_ = 0;  // of its list of files; 0 if it has none
  std::string list_digest_;
  std::vector<std::uint32_t> holding_, needing_;  // nodes, in order
  std::set<std::uint32_t> corrupt_senders_;
  // One of them, or none if another process of this node copies the object.
  std::optional<SourceLookup> lookup_;
  std::optional<FoundCopy> found_;
  std::optional<NewCopy> new_copy_;
  std::optional<ChainSchedule> schedule_;
};

// One node looks at the source for all, because file times may differ between clients of one file system: the first
// node; if it has left, the next one; finally this node.
Manifest CooperativePut::agree_on_source() {
  check_readable(context_);
  for (const auto& [node, here] : peers_.gather(round("there"), json{{"here", 1}})) {
    first_ = node;
    if (std::optional<Manifest> manifest = adopt_from_first()) return std::move(*manifest);
  }
  fail("{}: no node of the step can read it", context_.source.name);
}

std::optional<Manifest> CooperativePut::adopt_from_first() {
  const bool self = peers_.self() == first_;
  std::optional<Manifest> manifest;
  json message{{"none", 1}};
  if (self) {
    manifest = look_at_source(context_);
    const SourceIdentity seen = identity_of(*manifest, "");
    message = {
        {"object", seen.object}, {"packed", seen.packed}, {"files", seen.files}, {"index", seen.index}};
  }
  const std::map<std::uint32_t, json> messages =
      peers_.gather(fmt::format("{}:{}", round("source"), first_), std::move(message));
  const auto found = messages.find(first_);
  if (self || found == messages.end() || !found->second.contains("object")) return manifest;
  const json& seen = found->second;
  return adopt_identity(context_, {.node = peers_.name(first_),
                                   .object = seen.at("object"),
                                   .packed = seen.at("packed"),
                                   .index = seen.at("index"),
                                   .files = seen.at("files")});
}

// `list`: of the files, if this is the first node and has it.
void CooperativePut::announce(const char* state, std::shared_ptr<const std::string> list) {
  json own{{"state", state}, {"list", 0}, {"xxh3", ""}};
  if (list) {
    own["list"] = list->size();
    own["xxh3"] = pack::to_hex(pack::digest_of(std::as_bytes(std::span(*list))));
    peers_.exchange().serve_list(topic_, std::move(list));
  }
  for (const auto& [node, message] : peers_.gather(round("have"), std::move(own))) {
    if (node == first_) {
      list_bytes_ = message.at("list");
      list_digest_ = message.at("xxh3");
    }
    if (message.at("state") == "has") holding_.push_back(node);
    if (message.at("state") == "needs") needing_.push_back(node);
  }
}

std::optional<std::string> CooperativePut::get_list_from(std::uint32_t node) {
  try {
    const std::unique_ptr<PeerLink> link = peers_.connect(node);
    link->send(fmt::format("list {}", topic_));
    for (;;) {
      const std::optional<std::string> line = link->receive(peers_.exchange().timeouts().silence);
      if (!line) throw PeerError("no answer");
      const std::vector<std::string> words = words_of(*line);
      if (words.size() == 1 && words[0] == "alive") continue;
      if (words.size() != 4 || words[0] != "list" || parse_number(words[2]) != list_bytes_) {
        throw PeerError("it has another list of files");
      }
      std::string list(list_bytes_, '\0');
      link->receive_bytes(std::as_writable_bytes(std::span(list)));
      if (pack::to_hex(pack::digest_of(std::as_bytes(std::span(list)))) != list_digest_) {
        throw PeerError("its list of files arrived damaged");
      }
      return list;
    }
  } catch (const PeerError& error) {
    context_.tally.note(
        fmt::format("{} did not send the list of files: {}", peers_.name(node), error.what()));
    return {};
  }
}

// The other nodes that take part, the nearest before this one first.
std::vector<std::uint32_t> CooperativePut::predecessors() const {
  std::vector<std::uint32_t> nodes = holding_;
  nodes.insert(nodes.end(), needing_.begin(), needing_.end());
  std::erase(nodes, peers_.self());
  std::sort(nodes.begin(), nodes.end(), std::greater<>());
  const auto before =
      std::find_if(nodes.begin(), nodes.end(), [&](std::uint32_t node) { return node < peers_.self(); });
  std::rotate(nodes.begin(), before, nodes.end());
  return nodes;
}

// Gets the first node's list of files from the node before this one, and keeps it for the next one. Nothing if no node
// between this and the first can send it.
std::optional<std::string> CooperativePut::pass_on_list() {
  if (list_bytes_ == 0) return {};
  for (const std::uint32_t node : predecessors()) {
    std::optional<std::string> list = get_list_from(node);
    if (list) {
      peers_.exchange().serve_list(topic_, std::make_shared<const std::string>(*list));
      return list;
    }
    if (node == first_) break;
  }
  return {};
}

// Uses the first node's list of files. If that node cannot send it, reads the list from the source.
BegunCopy CooperativePut::begin(CopyLock lock) {
  const std::optional<std::string> list = pass_on_list();
  if (!list) return begin_copy(context_, lookup_->manifest(), std::move(lock));
  BegunCopy begun = begin_copy_with_list(context_, lookup_->manifest(), std::move(lock), *list);
  context_.tally.count_from_peer(list->size());
  return begun;
}

Subscription CooperativePut::subscription(Copy& copy, Arrivals& arrivals) {
  return {*schedule_,
          Subscription::Options{
              .topic = topic_,
              .predecessors = predecessors(),
              .holders = holding_,
              .timeouts = peers_.exchange().timeouts(),
              .name = [this](std::uint32_t node) { return peers_.name(node); },
              .connect = [this](std::uint32_t node) { return peers_.connect(node); },
              .lost =
                  [this](const std::vector<std::uint32_t>& asked, std::optional<std::uint32_t> passed_over) {
                    return peers_.lost(asked, passed_over);
                  },
              .bytes = [&copy](std::size_t chunk) { return copy.plan().bytes(chunk); },
              .buffer = [&copy](std::uint32_t bytes) { return copy.buffers().take(bytes); },
              .store =
                  [this, &arrivals](ArrivedChunk chunk) {
                    context_.tally.count_from_peer(chunk.data.bytes().size());
                    arrivals.add(std::move(chunk));
                  },
              .note = [this](const std::string& text) { context_.tally.note(text); }}};
}

void CooperativePut::exchange_chunks(Copy& copy) {
  const std::uint32_t self = peers_.self();
  std::optional<std::vector<std::uint32_t>> shares;
  if (holding_.empty()) shares = deal_chunks(copy.plan(), needing_);
  schedule_.emplace(self, copy.plan().size(), shares,
                    [&](std::size_t chunk) { return !copy.store().has(chunk); });
  peers_.exchange().serve_chunks(topic_, std::make_shared<CopyProvider>(copy, *schedule_));
  Arrivals arrivals;
  const auto read_share = [&](const std::function<bool()>& stop) {
    while (!stop()) {
      const std::optional<std::size_t> chunk = schedule_->take_own();
      if (!chunk) return;
      copy.read_from_source(*chunk);
      schedule_->stored(*chunk, self);
    }
  };
  const auto store_arrivals = [&] {
    while (std::optional<ArrivedChunk> arrived = arrivals.take()) {
      copy.take(arrived->chunk, std::move(arrived->data), arrived->digest);
      schedule_->stored(arrived->chunk, arrived->origin);
    }
  };
  const auto end = [&] {
    schedule_->stop();
    arrivals.end();
  };
  constexpr std::size_t kStoring = 2;
  const std::size_t threads = 1 + kStoring + static_cast<std::size_t>(copy.threads());
  const auto work = [&](std::size_t i, const std::function<bool()>& stop) {
    try {
      if (i == 0) {
        subscription(copy, arrivals).run();
        schedule_->wait_until_end();
        arrivals.end();
      } else {
        i <= kStoring ? store_arrivals() : read_share(stop);
      }
    } catch (...) {
      end();
      throw;
    }
  };
  parallel_for(threads, static_cast<int>(threads), work, end);
  copy.finish([&](std::size_t chunk) {
    const std::uint32_t from = schedule_->origin(chunk);
    if (from == self || !corrupt_senders_.insert(from).second) return;
    context_.tally.note(fmt::format("{} sent other bytes than the source has; they are read from the source",
                                    peers_.name(from)));
  });
}

std::map<std::uint32_t, json> CooperativePut::end() {
  json message{{"end", 1}, {"corrupt_senders", corrupt_senders_}};
  if (found_) message["content"] = lookup_->content_of(*found_);
  if (new_copy_) message["content"] = new_copy_->content();
  try {
    std::map<std::uint32_t, json> ends = peers_.gather(round("end"), std::move(message));
    peers_.exchange().withdraw(topic_);
    return ends;
  } catch (const Error&) {
    if (new_copy_) new_copy_->keep();  // other nodes failed
    throw;
  }
}

// If other nodes got wrong bytes from this node's copy, which only a quick check had found good, checks all of it. If
// no index tells which bytes are right, no node publishes a copy.
void CooperativePut::settle(const std::map<std::uint32_t, json>& ends) {
  std::set<std::string> contents;
  bool accused = false;
  for (const auto& [node, message] : ends) {
    if (message.contains("content")) contents.insert(message.at("content").get<std::string>());
    for (const json& sender : message.at("corrupt_senders")) accused = accused || sender == peers_.self();
  }
  const bool differing = contents.size() > 1;
  if (!differing && !accused) return;
  const std::string damage = found_ ? lookup_->remove_if_damaged(*found_) : "";
  if (!differing) {
    if (!damage.empty()) found_ = find_or_copy(context_, *lookup_);
    return;
  }
  const std::string& given = context_.source.name;
  std::string members;
  for (const auto& [node, message] : peers_.gather(round("damage"), json{{"damage", damage}})) {
    const std::string text = message.at("damage");
    if (!text.empty()) {
      fail("{}: {}'s copy in its cache was damaged ({}); stage it again", given, peers_.name(node), text);
    }
    members += (members.empty() ? "" : ", ") + peers_.name(node);
  }
  fail(
      "{}: {} got different bytes; stage it again when nobody writes to it, or pack it, so that an index can "
      "tell which of them are right",
      given, members);
}

FoundCopy CooperativePut::run() {
  lookup_.emplace(context_, agree_on_source());
  const bool first = peers_.self() == first_;
  SourceLookup::Result result = lookup_->find_or_lock(false);
  if (auto* const found = std::get_if<FoundCopy>(&result)) {
    found_ = std::move(*found);
    announce("has", first ? shared_list(lookup_->manifest(), found_->files) : nullptr);
    if (!needing_.empty()) {
      peers_.exchange().serve_chunks(
          topic_, std::make_shared<ObjectProvider>(peers_.self(), found_->files, lookup_->files_of(*found_),
                                                   context_.options.chunk_bytes));
      if (!first) pass_on_list();
    }
  } else if (auto* const lock = std::get_if<CopyLock>(&result)) {
    std::optional<BegunCopy> begun;
    if (first) begun = begin_copy(context_, lookup_->manifest(), std::move(*lock));
    announce("needs", first ? shared_list(begun->manifest, begun->incoming->files()) : nullptr);
    if (!begun) begun = begin(std::move(*lock));
    new_copy_.emplace(context_, std::move(*begun), first || list_bytes_ == 0);
    exchange_chunks(new_copy_->copy());
  } else {
    announce("busy", nullptr);
  }
  settle(end());
  if (new_copy_) return new_copy_->publish();
  return found_ ? std::move(*found_) : find_or_copy(context_, *lookup_);
}

}  // namespace

FoundCopy cooperative_put(PeerGroup& peers, const PutContext& context, std::size_t topic) {
  return CooperativePut(peers, context, topic).run();
}

}  // namespace lockstep::transfer
