// Decides how the lists of files of a ring's sources travel (exchange.h): from a node that has or makes one, in pieces that
// each node passes on as they arrive. No threads, clocks, sockets or bytes; see ring_node.h.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::transfer {

class ListRelay {
 public:
  static constexpr std::uint64_t kPiece = std::uint64_t{1} << 20U;

  enum class From {
    here,        ///< this node makes it, from its copy or from the source
    predecessor  ///< it comes along the ring
  };

  /// Of each source.
  explicit ListRelay(const std::vector<From>& from);

  /// The next list that this node must make, if there is one.
  std::optional<std::size_t> next_to_make();
  /// It has that many bytes.
  void made(std::size_t source, std::uint64_t bytes);

  /// All lists are here.
  bool complete() const;
  /// A new connection: the lists to ask for, from their beginning.
  std::vector<std::size_t> wanted() const;
  /// A piece arrives, after which the list has offset + bytes. False if it does not continue the list. A piece at 0 begins it
  /// anew.
  bool arrived(std::size_t source, std::uint64_t offset, std::uint64_t bytes, std::uint64_t total);
  /// This node makes the lists that are not complete.
  void predecessor_lost();

  struct Piece {
    std::size_t source = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
  };
  /// The successor asks for a list.
  void successor_wants(std::size_t source);
  std::optional<Piece> next_send();
  bool can_send() const;

 private:
  struct List {
    From from = From::predecessor;
    bool making = false;
    std::optional<std::uint64_t> total;
    std::uint64_t here = 0;
    bool asked = false;  // by the successor
    std::optional<std::uint64_t> sent;

    bool complete() const { return total == here; }
    bool can_send() const { return asked && total && (!sent || *sent < here); }
  };

  std::vector<List> lists_;
};

}  // namespace lockstep::transfer
