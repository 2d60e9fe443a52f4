#include "staging/rendezvous/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "common/environment.h"
#include "common/error.h"
#include "common/sockets.h"

namespace lockstep::transfer {
namespace {

constexpr std::chrono::milliseconds kConnectTimeout{5000};
constexpr int kHighestPort = 65535;

}  // namespace

RendezvousAddress RendezvousAddress::from_environment() {
  RendezvousAddress address;
  std::istringstream text(environment::get_or("LOCKSTEP_RENDEZVOUS", ""));
  text >> address.port;
  for (std::string host; text >> host;) address.hosts.push_back(host);
  address.key = environment::get_or("LOCKSTEP_RENDEZVOUS_KEY", "");
  if (address.port <= 0 || address.port > kHighestPort || address.hosts.empty() || address.key.empty()) {
    fail(
        "srun opened no rendezvous for the nodes of this step: check that the plugin is loaded where srun "
        "runs");
  }
  return address;
}

Rendezvous::Rendezvous(const RendezvousAddress& address, const Hello& hello,
                       std::function<void(const std::string& lost)> stop,
                       std::function<void(const Verdict&)> failed)
    : name_(address.name),
      socket_(connect_to(address.hosts, address.port, kConnectTimeout, name_.c_str())),
      session_(Session::Role::node, address.key),
      stop_(std::move(stop)),
      failed_(std::move(failed)) {
  send_all(socket_, session_.greeting(), name_.c_str());
  session_.take_greeting(read_line(address.greeting_timeout));
  send(hello.to_text());
  listener_ = std::thread([this] { listen(); });
}

Rendezvous::~Rendezvous() {
  leave();
  listener_.join();
}

void Rendezvous::leave() {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Rendezvous::send(const std::string& payload) {
  const std::lock_guard lock(sending_);
  const std::string sealed = session_.seal(payload);
  bytes_ += sealed.size();
  send_all(socket_, sealed, name_.c_str());
}

std::string Rendezvous::read_line(std::optional<std::chrono::milliseconds> timeout) {
  constexpr int kAliveInterval = 1000;  // milliseconds
  const int wait_for =
      timeout ? static_cast<int>(std::min<std::int64_t>(kAliveInterval, timeout->count())) : kAliveInterval;
  const auto begin = std::chrono::steady_clock::now();
  std::size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    pollfd wait{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, wait_for);
    if (ready == 0 && session_.greeted()) send(kAlive);
    // Without a greeting another program listens there, or srun hangs. Later the kernel notices a dead connection.
    if (timeout && std::chrono::steady_clock::now() - begin > *timeout) {
      fail("{} did not answer within {:.3g} s", name_, std::chrono::duration<double>(*timeout).count());
    }
    if (ready <= 0) continue;
    std::array<char, 65536> buffer{};
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("lost {}", name_);
    if (got == 0) fail("{} has ended", name_);
    bytes_ += static_cast<std::uint64_t>(got);
    received_.append(buffer.data(), static_cast<std::size_t>(got));
    if (received_.size() > kMaxServerLineBytes) fail("{} sent a line that is too long", name_);
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

void Rendezvous::listen() {
  try {
    for (;;) receive(session_.open(read_line()));
  } catch (const std::exception& error) {
    bool decided = false;
    {
      const std::lock_guard lock(mutex_);
      lost_ = error.what();
      decided = verdict_.has_value();
    }
    changed_.notify_all();  // gather() may wait, also after the verdict
    if (!decided) stop_(error.what());
  }
}

void Rendezvous::receive(const std::string& payload) {
  bool stopped = false;
  {
    const std::lock_guard lock(mutex_);
    if (kind_of(payload) == Message::verdict) {
      verdict_ = Verdict::from_text(payload);
      stopped = !verdict_->good;
    } else {
      RoundMessage message = RoundMessage::from_text(payload);
      rounds_.insert_or_assign(message.round, std::move(message.data));
    }
  }
  changed_.notify_all();
  if (!stopped) return;
  failed_ ? failed_(*verdict_) : stop_("");
}

nlohmann::json Rendezvous::gather(const std::string& round, nlohmann::json data) {
  return ungroup_nodes(exchange(round, std::move(data)));
}

nlohmann::json Rendezvous::exchange(const std::string& round, nlohmann::json data) {
  const std::string text = RoundMessage{round, std::move(data)}.to_text();
  if (text.size() > kMaxLineBytes / 2) fail("a message of {} bytes is too long for {}", text.size(), name_);
  send(text);
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return rounds_.contains(round) || !lost_.empty() || (verdict_ && !verdict_->good); });
  if (rounds_.contains(round)) {
    auto node = rounds_.extract(round);
    return std::move(node.mapped());
  }
  if (verdict_ && !verdict_->good) fail("{}", verdict_->why);
  fail("{}", lost_);
}

std::vector<ChainPart> Rendezvous::chains(const std::string& states, std::size_t round) {
  const nlohmann::json parts = exchange(fmt::format("{}:{}", kStatesRound, round), states);
  if (parts.is_object() && parts.contains("problem")) fail("{}", parts.at("problem").get<std::string>());
  return chain_parts_from(parts);
}

NextPredecessor Rendezvous::pass_over(std::size_t round, std::size_t chain, std::uint32_t predecessor) {
  return next_predecessor_from(ask({{"passed_over", predecessor},
                                    {"round", fmt::format("{}:{}", kStatesRound, round)},
                                    {"chain", chain}})
                                   .at("next"));
}

bool Rendezvous::is_lost(std::uint32_t node) {
  return !ask({{"asked", {node}}}).at("lost").empty();
}

void Rendezvous::set_address(nlohmann::json address) {
  ask({{"address", std::move(address)}});
}

nlohmann::json Rendezvous::address_of(std::uint32_t node) {
  return ask({{"address_of", node}}).value("address", nlohmann::json());
}

nlohmann::json Rendezvous::ask(nlohmann::json question) {
  return exchange(fmt::format("{}{}", kQuestion, ++questions_), std::move(question));
}

std::string Rendezvous::own_address() const {
  return local_address(socket_);
}

Verdict Rendezvous::agree(const Verdict& outcome) {
  send(outcome.to_text());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return verdict_ || !lost_.empty(); });
  if (verdict_) return *verdict_;
  fail("{}", lost_);
}

}  // namespace lockstep::transfer
