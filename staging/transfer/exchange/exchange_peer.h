// Gets from one other node what it has to give of a source (exchange.h says how, and what happens when it
// does not).
//
// Threads: run() is a thread's work; give_up(), dead() and ask_to_cede() from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "staging/transfer/exchange/exchange_link.h"
#include "staging/transfer/exchange/shelf.h"

namespace lockstep::transfer {

class ExchangePeer {
 public:
  struct Options {
    std::size_t topic = 0;
    std::size_t member = 0;    ///< its queue in the work
    std::uint32_t own_id = 0;  ///< of this node
    std::string name;          ///< for messages
    PeerPatience patience{};
    /// Connects to it.
    std::function<std::unique_ptr<Link>()> connect;
    /// The queue of a node; nothing where it takes no part.
    std::function<std::optional<std::size_t>(std::uint64_t node)> member_of;
    /// A chunk came from it.
    std::function<void(std::size_t chunk, std::uint64_t bytes)> got;
    /// What a person should know.
    std::function<void(const std::string&)> note;
  };

  ExchangePeer(Copy& copy, ChunkWork& work, Options options)
      : copy_(copy), work_(work), options_(std::move(options)) {}

  /// Until all chunks are there, or this node is given up.
  void run();

  std::size_t member() const { return options_.member; }
  bool dead() const { return dead_; }
  /// It shall hand over chunks, when it next gets round to it.
  void ask_to_cede() { cede_ = true; }
  bool ceding() const { return cede_ || asked_to_cede_; }

 private:
  void talk(Link& link);
  void give_up(const std::string& why);
  void ask(Link& link);
  void take_line(Link& link, const std::string& line);
  void take_chunk(Link& link, const std::vector<std::string>& words);
  std::size_t answered(const std::string& word);

  Copy& copy_;
  ChunkWork& work_;
  Options options_;
  std::vector<std::size_t> asked_;
  std::atomic<bool> cede_ = false;
  std::atomic<bool> asked_to_cede_ = false;
  std::atomic<bool> dead_ = false;
  int damaged_ = 0;
  bool reconnected_ = false;
};

}  // namespace lockstep::transfer
