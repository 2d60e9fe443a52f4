// Measures a scrape of lockstep-exporter with many ranks on a node: the real program in its own process, and
// real records of live ranks.
// {"bench":"exporter","ranks":…,"scrape_milliseconds":…,"memory_bytes":…}: the median time until the whole
// page has arrived, and the peak memory of the process.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "exporters/record/record.h"

namespace lockstep {
namespace {

using record::Phase;
using record::Writer;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (::mkdtemp(path_.data()) == nullptr) fail_errno("cannot make {}", path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_ = "/tmp/lockstep-bench-XXXXXX";
};

// The exporter beside this program; its port is in the line that it prints when it serves.
class Exporter {
 public:
  Exporter(const std::filesystem::path& program, const std::filesystem::path& records) {
    std::array<int, 2> output{};
    if (::pipe(output.data()) != 0) fail_errno("cannot make a pipe");
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(output[1], STDOUT_FILENO);
      ::execl(program.c_str(), program.c_str(), "--json", "--listen", "127.0.0.1:0", "--records",
              records.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(output[1]);
    const UniqueFd reader(output[0]);
    std::string line;
    for (char c = 0; ::read(reader.get(), &c, 1) == 1 && c != '\n';) line += c;
    if (line.empty()) fail("cannot start {}", program.string());
    const std::string url = nlohmann::json::parse(line).at("url");
    port_ = static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  ~Exporter() {
    ::kill(process_, SIGTERM);
    ::waitpid(process_, nullptr, 0);
  }

  std::string scrape() const {
    const UniqueFd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      fail_errno("cannot connect to the exporter");
    }
    write_all(connection.get(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
              "the exporter");
    std::string page;
    std::array<char, 65536> buffer{};
    for (;;) {
      const ssize_t got = ::read(connection.get(), buffer.data(), buffer.size());
      if (got < 0) fail_errno("cannot read from the exporter");
      if (got == 0) return page;
      page.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }

  std::uint64_t peak_memory() const {
    std::istringstream status(read_text_file(fmt::format("/proc/{}/status", process_)));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
    }
    fail("the exporter's memory is not in /proc/{}/status", process_);
  }

 private:
  pid_t process_ = -1;
  std::uint16_t port_ = 0;
};

void raise_file_limit() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<std::unique_ptr<Writer>> write_records(const std::filesystem::path& folder, int ranks) {
  std::filesystem::create_directories(folder);
  std::vector<std::unique_ptr<Writer>> writers;
  for (int rank = 0; rank < ranks; ++rank) {
    writers.push_back(
        std::make_unique<Writer>(folder / fmt::format("rank-{:06}.record", rank),
                                 record::Identity{.rank = rank, .size = ranks, .program = "bench"}));
    for (int step = 0; step < 40; ++step) {
      writers.back()->add_phase(Phase::forward, 30'000'000);
      writers.back()->add_phase(Phase::backward, 60'000'000);
      writers.back()->end_step(100'000'000, monotonic_ns(), {.tokens = 4096, .samples = 8, .padding = 0});
    }
  }
  return writers;
}

void run(int ranks, int scrapes) {
  raise_file_limit();
  const TemporaryFolder folder;
  const auto writers = write_records(folder.path() / "1000/1.0", ranks);
  const Exporter exporter(std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lockstep-exporter",
                          folder.path());
  std::vector<double> milliseconds;
  std::size_t page_bytes = 0;
  for (int i = 0; i < scrapes; ++i) {
    const std::uint64_t begin = monotonic_ns();
    const std::string page = exporter.scrape();
    milliseconds.push_back(seconds_between(begin, monotonic_ns()) * 1e3);
    page_bytes = page.size();
    if (page.find(fmt::format("\"}} {}\n# HELP lockstep_exporter_scrape", ranks)) == std::string::npos) {
      fail("the exporter does not serve all {} ranks", ranks);
    }
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const double median = milliseconds[milliseconds.size() / 2];
  Tool::print({{"bench", "exporter"},
               {"ranks", ranks},
               {"scrape_milliseconds", median},
               {"memory_bytes", exporter.peak_memory()},
               {"page_bytes", page_bytes}});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_exporter", "Measures a scrape of lockstep-exporter with many ranks on a node.");
  int ranks = 1000;
  int scrapes = 15;
  tool.app()
      .add_option("--ranks", ranks, "Ranks on the node")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  tool.app()
      .add_option("--scrapes", scrapes, "Scrapes to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  return tool.run(argc, argv, [&] { lockstep::run(ranks, scrapes); });
}
