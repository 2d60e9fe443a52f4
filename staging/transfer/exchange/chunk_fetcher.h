// Gets chunks of one source from one other node (exchange.h describes the conversation, and what happens when
// the node fails).
//
// Threads: run() is the work of one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "staging/transfer/copy/copy.h"
#include "staging/transfer/exchange/chunk_schedule.h"
#include "staging/transfer/exchange/peer_link.h"

namespace lockstep::transfer {

class ChunkFetcher {
 public:
  struct Options {
    std::size_t topic = 0;
    std::uint32_t node = 0;  ///< that is asked
    std::string name;        ///< of that node, for messages
    std::chrono::milliseconds silence{};
    std::function<std::unique_ptr<PeerLink>()> connect;
    /// This many bytes came from the node.
    std::function<void(std::uint64_t bytes)> received;
    /// Takes a line for the user.
    std::function<void(const std::string&)> note;
  };

  /// The references must outlive this object.
  ChunkFetcher(Copy& copy, ChunkSchedule& schedule, Options options)
      : copy_(copy), schedule_(schedule), options_(std::move(options)) {}

  /// Returns when all chunks are here, or when the node is given up.
  void run();

 private:
  void talk(PeerLink& link);
  void give_up(const std::string& why);
  void put_back_asked();
  void ask(PeerLink& link);
  void take_line(PeerLink& link, const std::string& line);
  void take_chunk(PeerLink& link, const std::vector<std::string>& words);
  std::size_t answered(const std::string& word);

  Copy& copy_;
  ChunkSchedule& schedule_;
  Options options_;
  std::vector<std::size_t> asked_;
  bool said_idle_ = false;
  int damaged_ = 0;
};

}  // namespace lockstep::transfer
