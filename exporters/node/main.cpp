// lockstep-exporter: serves the step times of all ranks of all jobs on this node to Prometheus.

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigwait
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/network.h"
#include "common/tool.h"
#include "exporters/node/collector.h"
#include "exporters/node/http_server.h"
#include "exporters/node/slow_services.h"

namespace lockstep::exporter {
namespace {

struct Arguments {
  CollectorOptions collector;
  HttpOptions http{.listen = "127.0.0.1:9753", .web = {}};
  std::filesystem::path web_config;
  std::filesystem::path textfile;
  long interval = 15;
  long hold = 60;
  bool print_targets = false;
  bool serve_targets = false;
  int target_port = 9753;
};

// Blocks the signals before the server starts its threads, so that only sigtimedwait() receives them.
sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

using Say = std::function<void(const std::string&)>;

// node_exporter serves the file as long as it exists, so it is removed at the end. After an error the file stays as it was:
// its age shows that something is wrong.
void write_textfile(const Arguments& arguments, const sigset_t& signals, Collector& collector,
                    const Say& say) {
  if (arguments.textfile.extension() != ".prom") {
    fail_usage("--textfile {}: node_exporter reads only names that end in .prom",
               arguments.textfile.string());
  }
  const timespec interval{.tv_sec = arguments.interval, .tv_nsec = 0};
  std::string last_error;
  do {
    try {
      write_file_atomically(arguments.textfile, collector.page());
      last_error.clear();
    } catch (const Error& error) {
      if (last_error != error.what()) say(error.what());
      last_error = error.what();
    }
  } while (sigtimedwait(&signals, nullptr, &interval) < 0);
  ::unlink(arguments.textfile.c_str());
}

// The answer at /targets. Prometheus keeps its last list if there is none.
Content targets_page(int port, const Say& say) {
  const auto ask = [port, say](const std::string&) -> std::optional<std::string> {
    try {
      return targets_of_slurm(port);
    } catch (const std::exception& error) {
      say(error.what());
      return std::nullopt;
    }
  };
  const auto answers = std::make_shared<BackgroundAnswers>(ask, std::chrono::seconds(30));
  const auto latest = [answers] { return answers->get("", BackgroundAnswers::Clock::now()); };
  (void)latest();  // asks before the first request
  return {.type = "application/json", .make = [latest] {
            if (auto answer = latest()) return *answer;
            fail("sinfo has not named the nodes yet");
          }};
}

// Reads the web configuration again every few seconds: a certificate that is renewed must not need a restart.
void wait_for_end(const Arguments& arguments, const sigset_t& signals, HttpServer& server, const Say& say) {
  WebConfig used = arguments.http.web;
  const timespec interval{.tv_sec = 2, .tv_nsec = 0};
  std::string last_error;
  while (sigtimedwait(&signals, nullptr, &interval) < 0) {
    if (arguments.web_config.empty()) continue;
    try {
      const WebConfig now = read_web_config(arguments.web_config);
      if (now != used) {
        server.use(now);
        used = now;
        say(fmt::format("uses the new {}", arguments.web_config.string()));
      }
      last_error.clear();
    } catch (const Error& error) {
      if (last_error != error.what()) say(fmt::format("{}; the one before stays in use", error.what()));
      last_error = error.what();
    }
  }
}

void serve(Arguments& arguments, const sigset_t& signals, Collector& collector, bool json, const Say& say) {
  if (!arguments.web_config.empty()) arguments.http.web = read_web_config(arguments.web_config);
  std::map<std::string, Content> paths;
  paths["/metrics"] = {.type = "text/plain; version=0.0.4; charset=utf-8",
                       .make = [&collector] { return collector.page(); }};
  if (arguments.serve_targets) paths["/targets"] = targets_page(arguments.target_port, say);
  HttpServer server(arguments.http, std::move(paths));
  const std::string url = server.url() + "/metrics";
  if (json) {
    Tool::print({{"url", url}, {"records", arguments.collector.records.string()}});
    std::fflush(stdout);
  } else {
    fmt::print(stderr, "lockstep-exporter: serving {} at {}\n", arguments.collector.records.string(), url);
  }
  wait_for_end(arguments, signals, server, say);
}

void run(Arguments& arguments, bool json, const Say& say) {
  if (arguments.print_targets) {
    fmt::print("{}\n", targets_of_slurm(arguments.target_port));
    return;
  }
  const sigset_t signals = block_end_signals();
  Collector collector(arguments.collector);
  if (arguments.textfile.empty()) {
    serve(arguments, signals, collector, json, say);
  } else {
    write_textfile(arguments, signals, collector, say);
  }
}

void add_collector_options(CLI::App& app, Arguments& arguments) {
  auto& collector = arguments.collector;
  app.add_option("--records", collector.records, "Folder of the records: UID/JOB.STEP/rank-*.record")
      ->capture_default_str()
      ->check(Tool::named());
  app.add_option("--cache", collector.cache, "Folder of the node's cache, to serve how full it is")
      ->check(Tool::named());
  app.add_option("--node", collector.node, "The node label of all series; default: the host's name")
      ->check(Tool::named());
  app.add_option("--hold", arguments.hold,
                 "Seconds for which a job step's last values are served after its last rank ended")
      ->capture_default_str()
      ->check(CLI::Range(0L, 86400L));
  app.add_option("--max-files", collector.limits.files, "Maximum number of records served")
      ->capture_default_str();
  app.add_option("--max-files-per-user", collector.limits.files_per_user,
                 "Maximum number of records served for one user")
      ->capture_default_str();
}

void add_server_options(CLI::App& app, Arguments& arguments) {
  app.add_option(
         "--listen", arguments.http.listen,
         "Address and port to serve on: ADDRESS:PORT, or :PORT for all addresses; port 0: any free port")
      ->capture_default_str();
  app.add_option(
         "--web.config.file", arguments.web_config,
         "TLS, client certificates and basic authentication, in the format that Prometheus' exporters share")
      ->check(Tool::named());
  app.add_option("--max-requests", arguments.http.requests_per_second,
                 "Requests of one address answered per second; more get 429 Too Many Requests")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1e6));
  app.add_option("--textfile", arguments.textfile,
                 "Serve nothing; write the metrics to this file, DIR/NAME.prom, for node_exporter")
      ->check(Tool::named());
  app.add_option("--interval", arguments.interval, "Seconds between two writes of --textfile")
      ->capture_default_str()
      ->check(CLI::Range(1L, 3600L));
  app.add_flag("--serve-targets", arguments.serve_targets,
               "Also serve /targets: the exporters of Slurm's nodes, for Prometheus' http_sd");
  app.add_flag("--print-targets", arguments.print_targets,
               "Print the exporters of Slurm's nodes, for Prometheus' file_sd, and exit");
  app.add_option("--target-port", arguments.target_port, "Port of the exporters in these lists")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
}

}  // namespace
}  // namespace lockstep::exporter

int main(int argc, char** argv) {
  lockstep::Tool tool(
      "lockstep-exporter",
      "Serves the step times of all ranks of all jobs on this node to Prometheus, until SIGTERM.");
  lockstep::exporter::Arguments arguments;
  arguments.collector.records = "/run/lockstep/records";
  arguments.collector.node = lockstep::host_name();
  lockstep::exporter::add_collector_options(tool.app(), arguments);
  lockstep::exporter::add_server_options(tool.app(), arguments);
  return tool.run(argc, argv, [&] {
    arguments.collector.limits.hold = std::chrono::seconds(arguments.hold);
    arguments.collector.say = [&](const std::string& line) { tool.say(line); };
    lockstep::exporter::run(arguments, tool.json(), arguments.collector.say);
  });
}
