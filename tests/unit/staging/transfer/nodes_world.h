// Nodes that put the same source, each in a separate process.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "common/files.h"
#include "staging/transfer/put_nodes.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {

/// The result of one node.
struct NodeEnd {
  int code = 0;       ///< of the process, or 128 + signal
  std::string error;  ///< the message that it threw, or that it was stopped with
  nlohmann::json result;

  /// The note for the user.
  std::string note() const { return result.value("note", ""); }
};

/// Gives this process and its children a separate mount namespace. Needs root.
void have_own_mounts();
/// As have_own_mounts(); the process then sees the content of `other` at `place`.
void see_instead(const std::filesystem::path& place, const std::filesystem::path& other);

using staging_test::size_of;
using staging_test::SourceRead;
using staging_test::SourceReads;

/// Stops the process that works for a node and the one that supervises it, as a suspended job is stopped.
void stop_this_node();

/// How one node differs from the others.
struct NodeChange {
  FileSystem* system = nullptr;
  std::string key = "secret";
  std::string host = "127.0.0.1";
  std::function<void()> before{};  ///< in its process
  std::function<void(PutOptions&)> options{};
  /// Replaces the work of its process.
  std::function<void(const NodesOptions&)> instead{};
  bool absent = false;
};

class NodesTest : public staging_test::StagingTest {
 protected:
  /// Starts `count` nodes. finish() waits for them, and kills those that run longer than `limit`.
  void start(int count, const std::filesystem::path& source, std::map<int, NodeChange> changes = {});
  /// Waits until a node has stopped itself.
  void wait_until_stopped(int node) const;
  void resume(int node) const;
  /// Starts three nodes and waits until the last has stopped itself at its first read of data.
  void start_until_the_last_stops(const std::filesystem::path& pack);
  std::vector<NodeEnd> finish(std::chrono::seconds limit = std::chrono::seconds(90));
  std::vector<NodeEnd> put_on(int count, const std::filesystem::path& source,
                              std::map<int, NodeChange> changes = {}) {
    start(count, source, std::move(changes));
    return finish();
  }

  /// Puts the source on one node, in chunks as the nodes use them: the digests of others are not known to them.
  PutResult put_alone(int node, const std::filesystem::path& source) const;

  /// Expects that all succeeded and have the whole content; returns the bytes that all read from the source.
  std::uint64_t expect_good(const std::vector<NodeEnd>& ends, const std::filesystem::path& source) const;

  std::vector<pid_t> running_;
  UniqueFd port_;          ///< keeps the first node's port free until that node listens
  std::size_t lanes_ = 0;  ///< as PutSizes::lanes
  int wait_seconds_ = 20;
  PeerTimeouts peer_timeouts_{.quiet = std::chrono::seconds(1),
                              .retry = std::chrono::milliseconds(200),
                              .lost = std::chrono::seconds(4),
                              .stalled = std::chrono::seconds(4)};
  std::chrono::milliseconds source_patience_{0};
};

/// A fixture whose tests run with several numbers of connections between two nodes: otherwise this machine's cores decide
/// how many there are.
template <typename Fixture>
class WithLanes : public Fixture, public testing::WithParamInterface<std::size_t> {
 protected:
  WithLanes() { this->lanes_ = GetParam(); }
};

inline const auto kLanes = testing::Values<std::size_t>(1, 4);

}  // namespace lockstep::transfer
