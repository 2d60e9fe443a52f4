#include "staging/transfer/put_together.h"

#include <algorithm>
#include <set>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/index.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/exchange/exchange_peer.h"

namespace lockstep::transfer {
namespace {

using nlohmann::json;

/// One source at one node of the circle.
class Together {
 public:
  Together(Circle& circle, PutOne& one, std::size_t topic, const PutOptions& options)
      : circle_(circle), one_(one), topic_(topic), options_(options) {}
  ~Together() { circle_.exchange().withdraw(topic_); }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

  void run();

 private:
  enum class State { has, needs, busy };

  void agree_on_source();
  bool first_has_looked();
  State find_or_lock();
  void get_list();
  bool get_list_from(std::uint32_t node);
  void offer(State state);
  void exchange_chunks();
  void read_own(const std::function<bool()>& stop);
  void finish();
  std::map<std::uint32_t, json> end(State state);
  void settle(State state, const std::map<std::uint32_t, json>& ends);
  std::string round(const char* name) const { return fmt::format("{}:{}", name, topic_); }
  void note(const std::string& text);

  Circle& circle_;
  PutOne& one_;
  std::size_t topic_;
  const PutOptions& options_;

  std::uint32_t first_ = 0;                  // the node whose word holds
  std::shared_ptr<const std::string> list_;  // where this is the first node
  std::uint64_t list_bytes_ = 0;
  std::string list_digest_;
  std::vector<std::uint32_t> members_;  // who has it or needs it, in order
  std::size_t self_ = 0;                // this node's place there
  std::vector<std::uint32_t> seeders_, needing_;
  std::optional<ChunkWork> work_;
  std::vector<std::unique_ptr<ExchangePeer>> peers_;
  std::mutex mutex_;
  std::vector<std::uint32_t> came_from_;  // of each chunk: the node + 1
  std::set<std::uint32_t> liars_;
};

void Together::note(const std::string& text) {
  one_.note(text);
}

// The first node looks at the source for all, since the times of files may differ between a file system's
// clients. Where it has left meanwhile the next one does; this node itself at the latest.
void Together::agree_on_source() {
  one_.check_readable();
  for (const auto& [node, here] : circle_.gather(round("there"), json{{"here", 1}})) {
    first_ = node;
    if (first_has_looked()) return;
  }
}

bool Together::first_has_looked() {
  json word{{"none", 1}};
  if (circle_.self() == first_) {
    one_.look();
    const Manifest& manifest = one_.manifest();
    word = {{"object", manifest.object},
            {"packed", manifest.packed()},
            {"files", manifest.packed() ? "" : state_digest(manifest)},
            {"index", pack::to_hex(manifest.index.index)}};
  }
  const std::map<std::uint32_t, json> said =
      circle_.gather(fmt::format("{}:{}", round("source"), first_), std::move(word));
  if (circle_.self() == first_) return true;
  const auto found = said.find(first_);
  if (found == said.end() || !found->second.contains("object")) return false;
  one_.take_word(found->second.at("object"), found->second.at("packed"), found->second.at("index"),
                 found->second.at("files"), circle_.name(first_));
  return true;
}

Together::State Together::find_or_lock() {
  if (one_.find(false)) return State::has;
  if (!one_.lock(false)) return State::busy;
  return one_.result().hit ? State::has : State::needs;
}

void Together::offer(State state) {
  if (circle_.self() == first_ && state != State::busy) {
    if (state == State::needs) one_.make_list();
    list_ = std::make_shared<const std::string>(one_.list_text());
    list_bytes_ = list_->size();
    list_digest_ = pack::to_hex(pack::digest_of(std::as_bytes(std::span(*list_))));
    circle_.exchange().serve(topic_, std::make_shared<ListShelf>(list_));
  }
  constexpr std::array<const char*, 3> kNames{"has", "needs", "busy"};
  const std::map<std::uint32_t, json> said =
      circle_.gather(round("have"), json{{"state", kNames.at(static_cast<std::size_t>(state))},
                                         {"list", list_bytes_},
                                         {"xxh3", list_digest_}});
  for (const auto& [node, word] : said) {
    if (node == first_) {
      list_bytes_ = word.at("list");
      list_digest_ = word.at("xxh3");
    }
    if (word.at("state") == "busy") continue;
    members_.push_back(node);
    (word.at("state") == "has" ? seeders_ : needing_).push_back(node);
  }
}

// A list that the first node cannot give is read at the source.
void Together::get_list() {
  if (circle_.self() == first_) return;
  if (list_bytes_ > 0 && get_list_from(first_)) return;
  one_.make_list();
}

bool Together::get_list_from(std::uint32_t node) {
  try {
    const std::unique_ptr<Link> link = circle_.connect(node);
    link->send(fmt::format("list {}", topic_));
    for (;;) {
      const std::optional<std::string> line = link->receive(circle_.exchange().patience().silence);
      if (!line) throw PeerError("it does not answer");
      const std::vector<std::string> words = words_of(*line);
      if (words.size() == 1 && words[0] == "alive") continue;
      if (words.size() != 4 || words[0] != "list" || number_of(words[2]) != list_bytes_) {
        throw PeerError("it has no list of the files");
      }
      std::string list(list_bytes_, '\0');
      link->receive_bytes(std::as_writable_bytes(std::span(list)));
      if (pack::to_hex(pack::digest_of(std::as_bytes(std::span(list)))) != list_digest_) {
        throw PeerError("its list of the files came damaged");
      }
      one_.take_list(list);
      one_.count_from_peer(list_bytes_);
      return true;
    }
  } catch (const PeerError& error) {
    note(fmt::format("the list of files is read from the source: {}: {}", circle_.name(node), error.what()));
    return false;
  }
}

void Together::exchange_chunks() {
  one_.start_copy();
  Copy& copy = one_.copy();
  came_from_.resize(copy.plan().size());
  self_ = static_cast<std::size_t>(std::find(members_.begin(), members_.end(), circle_.self()) -
                                   members_.begin());
  const std::vector<std::uint32_t>& owners = seeders_.empty() ? needing_ : seeders_;
  const auto member_of = [&](std::uint64_t node) -> std::optional<std::size_t> {
    const auto found = std::find(members_.begin(), members_.end(), node);
    if (found == members_.end()) return {};
    return static_cast<std::size_t>(found - members_.begin());
  };
  work_.emplace(
      copy.plan().size(), members_.size(), self_,
      [&](std::size_t chunk) { return *member_of(owners[chunk % owners.size()]); },
      [&](std::size_t chunk) { return !copy.store().has(chunk); });
  circle_.exchange().serve(topic_, std::make_shared<CopyShelf>(copy, *work_, members_, list_));
  for (const std::uint32_t node : members_) {
    if (node == circle_.self()) continue;
    peers_.push_back(std::make_unique<ExchangePeer>(
        copy, *work_,
        ExchangePeer::Options{.topic = topic_,
                              .member = *member_of(node),
                              .own_id = circle_.self(),
                              .name = circle_.name(node),
                              .patience = circle_.exchange().patience(),
                              .connect = [this, node] { return circle_.connect(node); },
                              .member_of = member_of,
                              .got =
                                  [this, node](std::size_t chunk, std::uint64_t bytes) {
                                    one_.count_from_peer(bytes);
                                    const std::lock_guard lock(mutex_);
                                    came_from_[chunk] = node + 1;
                                  },
                              .note = [this](const std::string& text) { note(text); }}));
  }
  const std::size_t readers = static_cast<std::size_t>(copy.threads());
  parallel_for(readers + peers_.size(), static_cast<int>(readers + peers_.size()),
               [&](std::size_t i, const std::function<bool()>& stop) {
                 try {
                   i < readers ? read_own(stop) : peers_[i - readers]->run();
                 } catch (...) {
                   work_->stop();
                   throw;
                 }
               });
}

void Together::read_own(const std::function<bool()>& stop) {
  const auto ask_for_more = [&] {
    const std::optional<std::size_t> slowest = work_->slowest();
    if (!slowest || !seeders_.empty()) return;
    for (const auto& peer : peers_) {
      if (peer->ceding()) return;  // one at a time
    }
    for (const auto& peer : peers_) {
      if (peer->member() == *slowest && !peer->dead()) peer->ask_to_cede();
    }
  };
  while (!stop()) {
    const std::optional<std::size_t> chunk = work_->take_own(ask_for_more);
    if (!chunk) return;
    one_.copy().read_from_source(*chunk, *work_);
  }
}

void Together::finish() {
  one_.copy().finish([&](std::size_t chunk) {
    const std::uint32_t from = came_from_[chunk];
    if (from == 0 || !liars_.insert(from).second) return;
    note(fmt::format("{} sent other bytes than the source has; they are read from the source",
                     circle_.name(from - 1)));
  });
}

// What each came to, and whom it found to have sent other bytes.
std::map<std::uint32_t, json> Together::end(State state) {
  json word{{"end", 1}, {"liars", json::array()}};
  if (state != State::busy) word["content"] = one_.content();
  for (const std::uint32_t from : liars_) word["liars"].push_back(from - 1);
  try {
    std::map<std::uint32_t, json> ends = circle_.gather(round("end"), std::move(word));
    circle_.exchange().withdraw(topic_);
    return ends;
  } catch (const Error&) {
    one_.keep();  // it is others that failed
    throw;
  }
}

// Who served a copy that others found wrong looks at all of it: a quick look had found it good. Where no
// index tells which bytes are right, nobody publishes any.
void Together::settle(State state, const std::map<std::uint32_t, json>& ends) {
  std::set<std::string> contents;
  bool accused = false;
  for (const auto& [node, word] : ends) {
    if (word.contains("content")) contents.insert(word.at("content").get<std::string>());
    for (const json& liar : word.at("liars")) accused = accused || liar == circle_.self();
  }
  const bool differing = contents.size() > 1;
  if (!differing && !accused) return;
  const std::string damage = state == State::has ? one_.remove_if_damaged() : "";
  if (!differing) {
    if (!damage.empty()) one_.wait_for_other();
    return;
  }
  std::string members;
  for (const auto& [node, word] : circle_.gather(round("damage"), json{{"damage", damage}})) {
    const std::string text = word.at("damage");
    if (!text.empty()) {
      fail("{}: {}'s copy in its cache was damaged ({}); stage it again", one_.source().given,
           circle_.name(node), text);
    }
    members += (members.empty() ? "" : ", ") + circle_.name(node);
  }
  fail(
      "{}: {} got different bytes; stage it again when nobody writes to it, or pack it, so that an index can "
      "tell who is wrong",
      one_.source().given, members);
}

void Together::run() {
  agree_on_source();
  const State state = find_or_lock();
  offer(state);
  if (state == State::needs) {
    get_list();
    one_.use_list(circle_.self() == first_ || list_bytes_ == 0);
    exchange_chunks();
    finish();
  } else if (state == State::has && !needing_.empty()) {
    circle_.exchange().serve(topic_, std::make_shared<ObjectShelf>(one_.files(), one_.object_files(),
                                                                   options_.chunk_bytes, list_));
  }
  settle(state, end(state));
  if (state == State::busy) {
    one_.wait_for_other();
    return;
  }
  if (state == State::needs) one_.publish();
}

}  // namespace

void put_together(Circle& circle, PutOne& one, std::size_t topic, const PutOptions& options) {
  Together(circle, one, topic, options).run();
}

}  // namespace lockstep::transfer
