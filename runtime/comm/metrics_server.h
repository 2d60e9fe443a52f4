// The place where lockstep::prometheus hooks into World, which does not link it.
//
// Threads: made and destroyed by the thread that owns the World.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace lockstep::comm {

/// Serves the records of this node's ranks while it exists.
class MetricsServer {
 public:
  MetricsServer() = default;
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  virtual ~MetricsServer() = default;
};

/// `listen` is $LOCKSTEP_PROMETHEUS, `record` this rank's record. Throws Error.
using StartMetricsServer = std::unique_ptr<MetricsServer> (*)(const std::string& listen,
                                                              const std::filesystem::path& record);

}  // namespace lockstep::comm

/// Not null if the program links lockstep::prometheus.
extern "C" [[gnu::weak]] const lockstep::comm::StartMetricsServer lockstep_start_metrics_server;
