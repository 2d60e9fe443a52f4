// lockstep-exporter: serves the step times of all ranks of all jobs on this node to Prometheus.

#include <prometheus/exposer.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigwait

#include <cstdio>
#include <memory>

#include "common/error.h"
#include "common/leaf/host_name.h"
#include "common/tool.h"
#include "exporters/node/collector.h"

namespace lockstep::exporter {
namespace {

struct Arguments {
  CollectorOptions collector;
  std::string listen = "0.0.0.0:9753";
  long hold = 60;
};

// Blocks the signals before the server starts its threads, so that only sigwait() receives them.
sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void serve(const Arguments& arguments, bool json) {
  const sigset_t signals = block_end_signals();
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(arguments.listen);
  } catch (const std::exception&) {  // its message does not name the address
    fail("cannot listen on {}: check that the address belongs to this node and the port is free",
         arguments.listen);
  }
  const auto collector = std::make_shared<Collector>(arguments.collector);
  exposer->RegisterCollectable(collector);
  const std::string host = arguments.listen.substr(0, arguments.listen.rfind(':'));
  const std::string url = fmt::format("http://{}:{}/metrics", host, exposer->GetListeningPorts().at(0));
  if (json) {
    Tool::print({{"url", url}, {"records", arguments.collector.records.string()}});
    std::fflush(stdout);
  } else {
    fmt::print(stderr, "lockstep-exporter: serving {} at {}\n", arguments.collector.records.string(), url);
  }
  int signal = 0;
  sigwait(&signals, &signal);
}

}  // namespace
}  // namespace lockstep::exporter

int main(int argc, char** argv) {
  using lockstep::exporter::Arguments;
  lockstep::Tool tool(
      "lockstep-exporter",
      "Serves the step times of all ranks of all jobs on this node to Prometheus, until SIGTERM.");
  Arguments arguments;
  auto& collector = arguments.collector;
  collector.records = "/run/lockstep/records";
  collector.node = lockstep::host_name();
  auto& app = tool.app();
  app.add_option("--records", collector.records, "Folder of the records: UID/JOB.STEP/rank-*.record")
      ->capture_default_str();
  app.add_option("--cache", collector.cache, "Folder of the node's cache, to serve how full it is");
  app.add_option("--listen", arguments.listen, "Address and port to serve on; port 0: any free port")
      ->capture_default_str();
  app.add_option("--node", collector.node, "The node label of all series")->capture_default_str();
  app.add_option("--hold", arguments.hold, "Seconds for which a rank's last values are served after its end")
      ->capture_default_str()
      ->check(CLI::Range(0L, 86400L));
  app.add_option("--max-files", collector.limits.files, "Maximum number of records served")
      ->capture_default_str();
  app.add_option("--max-files-per-user", collector.limits.files_per_user,
                 "Maximum number of records served for one user")
      ->capture_default_str();
  return tool.run(argc, argv, [&] {
    collector.limits.hold = std::chrono::seconds(arguments.hold);
    lockstep::exporter::serve(arguments, tool.json());
  });
}
