// What World starts for LOCKSTEP_PROMETHEUS.
#include <prometheus/exposer.h>
#include <unistd.h>

#include <charconv>
#include <exception>
#include <nlohmann/json.hpp>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "exporters/record/record.h"
#include "runtime/comm/metrics_server.h"
#include "runtime/prometheus/node_collectable.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "LOCKSTEP_PROMETHEUS";

struct Address {
  std::string host;
  std::string port;
};

Address parse_address(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  const Address address = colon == std::string::npos
                              ? Address{.host = "127.0.0.1", .port = listen}
                              : Address{.host = listen.substr(0, colon), .port = listen.substr(colon + 1)};
  std::uint16_t number = 0;
  const char* const end = address.port.data() + address.port.size();
  const auto [last, error] = std::from_chars(address.port.data(), end, number);
  if (error != std::errc() || last != end || address.host.empty())
    fail("{}={}: give PORT or ADDRESS:PORT, such as 0.0.0.0:9400", kVariable, listen);
  return address;
}

class PrometheusServer : public comm::MetricsServer {
 public:
  PrometheusServer(const Address& address, const fs::path& record)
      : collectable_(std::make_shared<NodeCollectable>(record)),
        exposer_({"listening_ports", address.host + ":" + address.port, "num_threads", "2"}) {
    exposer_.RegisterCollectable(collectable_);
    write_target(address, record);
  }
  ~PrometheusServer() override {
    if (!target_.empty()) ::unlink(target_.c_str());
  }

 private:
  // A file for Prometheus' file_sd, one for each node, as long as the job runs.
  void write_target(const Address& address, const fs::path& record) {
    const auto folder = environment::get("LOCKSTEP_PROMETHEUS_TARGETS");
    if (!folder) return;
    const record::Identity identity = record::Reader(record).identity();
    const bool everywhere = address.host == "0.0.0.0";
    const nlohmann::json targets = {{{"targets",
                                      {fmt::format("{}:{}", everywhere ? identity.node : address.host,
                                                   exposer_.GetListeningPorts().front())}}}};
    fs::create_directories(*folder);
    const fs::path target =
        fs::path(*folder) / fmt::format("{}.{}-{}.json", identity.job_id, identity.step_id, identity.node);
    write_file_atomically(target, targets.dump(), 0644);
    target_ = target;
  }

  std::shared_ptr<NodeCollectable> collectable_;
  ::prometheus::Exposer exposer_;
  fs::path target_;
};

std::unique_ptr<comm::MetricsServer> start(const std::string& listen, const fs::path& record) {
  const Address address = parse_address(listen);
  if (record.empty()) fail("{}: this rank writes no record, so there is nothing to serve", kVariable);
  try {
    return std::make_unique<PrometheusServer>(address, record);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // civetweb's are its own; its message names no port
    fail("{}={}: cannot serve there ({}): another job may use the port; port 0 takes a free one", kVariable,
         listen, error.what());
  }
}

}  // namespace
}  // namespace lockstep

const lockstep::comm::StartMetricsServer lockstep_start_metrics_server = &lockstep::start;
