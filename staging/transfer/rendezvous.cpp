#include "staging/transfer/rendezvous.h"

#include <sys/socket.h>

#include <array>
#include <sstream>

#include "common/environment.h"
#include "common/error.h"
#include "staging/transfer/rendezvous_socket.h"

namespace lockstep::transfer {
namespace {

constexpr std::chrono::milliseconds kPatience{5000};
constexpr int kHighestPort = 65535;

}  // namespace

RendezvousAddress RendezvousAddress::from_environment() {
  RendezvousAddress address;
  std::istringstream text(environment::get_or("LOCKSTEP_RENDEZVOUS", ""));
  text >> address.port;
  for (std::string host; text >> host;) address.hosts.push_back(host);
  address.key = environment::get_or("LOCKSTEP_RENDEZVOUS_KEY", "");
  if (address.port <= 0 || address.port > kHighestPort || address.hosts.empty() || address.key.empty()) {
    fail("srun opened no rendezvous for the step's nodes; is the plugin loaded where srun runs?");
  }
  return address;
}

Rendezvous::Rendezvous(const RendezvousAddress& address, const Hello& hello,
                       std::function<void(const std::string& lost)> stop)
    : socket_(connect_to(address.hosts, address.port, kPatience)),
      session_(Session::Role::node, address.key),
      stop_(std::move(stop)) {
  constexpr const char* kName = "srun's rendezvous";
  write_all(socket_.get(), session_.greeting(), kName);
  session_.take_greeting(read_line());
  write_all(socket_.get(), session_.seal(hello.to_text()), kName);
  listener_ = std::thread([this] { listen(); });
}

Rendezvous::~Rendezvous() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  listener_.join();
}

std::string Rendezvous::read_line() {
  std::size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    std::array<char, 4096> buffer{};
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("lost srun's rendezvous");
    if (got == 0) fail("srun's rendezvous has ended");
    received_.append(buffer.data(), static_cast<std::size_t>(got));
    if (received_.size() > kLongestLine) fail("srun's rendezvous sent a line that is too long");
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

void Rendezvous::listen() {
  try {
    const Verdict verdict = Verdict::from_text(session_.open(read_line()));
    verdict_.set_value(verdict);
    if (!verdict.good) stop_("");
  } catch (const std::exception& error) {
    verdict_.set_exception(std::current_exception());
    stop_(error.what());
  }
}

Verdict Rendezvous::agree(const Verdict& outcome) {
  write_all(socket_.get(), session_.seal(outcome.to_text()), "srun's rendezvous");
  return verdict_.get_future().get();
}

}  // namespace lockstep::transfer
