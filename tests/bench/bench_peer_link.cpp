// Measures one connection of the exchange between nodes, over loopback: how fast chunks pass, and how much processor
// time a byte costs the sender and the receiver. "GB/s a core" is what one core that does nothing else can send or
// receive. Prints one line for each run: {"bench":"peer_link","bytes":…,"chunk_bytes":…,"seconds":…,…}.

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/sockets.h"
#include "common/tool.h"
#include "staging/transfer/exchange/peer_link.h"

namespace lockstep::transfer {
namespace {

constexpr const char* kKey = "a key of the benchmark";

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Settings {
  std::size_t bytes = std::size_t{4} << 30U;
  std::size_t chunk_bytes = std::size_t{4} << 20U;
  std::size_t runs = 5;
  bool json = false;
};

void run(const Settings& settings) {
  int port = 0;
  const UniqueFd listening = listen_on(0, 0, port);
  UniqueFd asking = connect_to({"127.0.0.1"}, port, std::chrono::seconds(5));
  UniqueFd accepted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted) fail_errno("accept");
  const std::size_t chunks = settings.bytes / settings.chunk_bytes;
  double sending = 0;
  std::thread sender([&] {
    PeerLink link(std::move(accepted), PeerLink::Role::server, kKey, "1.0", {});
    link.handshake(0);
    const std::vector<std::byte> chunk(settings.chunk_bytes, std::byte{7});
    const double begin = thread_seconds();
    for (std::size_t n = 0; n < chunks; ++n) link.send("chunk", chunk);
    sending = thread_seconds() - begin;
    link.receive(std::chrono::seconds(60));  // until all has arrived
  });
  PeerLink link(std::move(asking), PeerLink::Role::client, kKey, "1.0", {});
  const double handshake_begin = thread_seconds();
  link.handshake(1);
  const double handshake = thread_seconds() - handshake_begin;
  std::vector<std::byte> chunk(settings.chunk_bytes);
  const double begin = thread_seconds();
  const std::uint64_t start = monotonic_ns();
  for (std::size_t n = 0; n < chunks; ++n) {
    if (!link.receive(std::chrono::seconds(60))) fail("no chunk came");
    link.receive_bytes(chunk);
  }
  const double seconds = seconds_between(start, monotonic_ns());
  const double receiving = thread_seconds() - begin;
  link.send("end");
  sender.join();
  const double bytes = static_cast<double>(chunks * settings.chunk_bytes);
  const double send_rate = bytes / sending;
  const double receive_rate = bytes / receiving;
  if (settings.json) {
    Tool::print({{"bench", "peer_link"},
                 {"bytes", bytes},
                 {"chunk_bytes", settings.chunk_bytes},
                 {"seconds", seconds},
                 {"bytes_per_second", bytes / seconds},
                 {"send_bytes_per_core_second", send_rate},
                 {"receive_bytes_per_core_second", receive_rate},
                 {"handshake_cpu_seconds", handshake}});
  } else {
    fmt::print("{:.2f} GB/s; a core sends {:.2f} GB/s, receives {:.2f} GB/s; handshake {:.0f} µs of a core\n",
               bytes / seconds / 1e9, send_rate / 1e9, receive_rate / 1e9, handshake * 1e6);
  }
}

}  // namespace
}  // namespace lockstep::transfer

int main(int argc, char** argv) {
  using namespace lockstep;
  transfer::Settings settings;
  CLI::App app("Measures one connection between two nodes of a step.");
  app.add_option("--bytes", settings.bytes);
  app.add_option("--chunk-bytes", settings.chunk_bytes);
  app.add_option("--runs", settings.runs);
  app.add_flag("--json", settings.json);
  app.add_flag_callback("--quick", [&settings] {
    settings.bytes = std::size_t{64} << 20U;
    settings.runs = 1;
  });
  CLI11_PARSE(app, argc, argv);
  try {
    for (std::size_t n = 0; n < settings.runs; ++n) transfer::run(settings);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_peer_link: {}\n", error.what());
    return 1;
  }
}
