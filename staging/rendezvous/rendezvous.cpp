#include "staging/rendezvous/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <string_view>

#include "common/error.h"
#include "common/sockets.h"
#include "common/thread.h"

namespace lockstep::transfer {
namespace {

constexpr std::chrono::milliseconds kConnectTimeout{5000};
constexpr std::chrono::milliseconds kConnectAgain{100};

// Tries again if srun's side drops the connection, as it does if it has no room for it or this process was too slow.
std::unique_ptr<SecureConnection> connect(const RendezvousAddress& address, const std::string& client) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> deadline;
  const auto left = [&] { return std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()); };
  for (;;) {
    auto connection = std::make_unique<SecureConnection>(
        connect_to(address.hosts, address.port, kConnectTimeout, address.name.c_str()), kRendezvousService,
        address.key);
    // Addresses that do not answer take none of the time of the one that does.
    if (!deadline) deadline = Clock::now() + address.handshake_timeout;
    try {
      connection->connect(client, left());
      return connection;
    } catch (const PeerSilent&) {
      fail("{} did not answer within {:.3g} s", address.name,
           std::chrono::duration<double>(address.handshake_timeout).count());
    } catch (const PeerLost& dropped) {
      if (left() < kConnectAgain) fail("{}: {}", address.name, dropped.what());
      std::this_thread::sleep_for(kConnectAgain);
    } catch (const PeerError& error) {
      fail("{}: {}", address.name, error.what());
    }
  }
}

}  // namespace

Rendezvous::Rendezvous(const RendezvousAddress& address, const Hello& hello,
                       std::function<void(const std::string& why)> stop)
    : name_(address.name),
      prints_reasons_(address.prints_reasons),
      connection_(connect(address, hello.client_name())),
      stop_(std::move(stop)) {
  send(hello.to_text());
  listener_ = new_thread([this] { listen(); });
}

Rendezvous::~Rendezvous() {
  leave();
  listener_.join();
}

void Rendezvous::leave() {
  ::shutdown(connection_->socket().get(), SHUT_RDWR);
}

void Rendezvous::send(const std::string& payload) {
  const std::lock_guard lock(sending_);
  try {
    connection_->send_line(payload);
  } catch (const PeerError& error) {
    const std::lock_guard received(mutex_);
    if (lost_.empty()) lost_ = fmt::format("lost {}: {}", name_, error.what());
    fail("{}", lost_);
  }
}

// The kernel notices a dead connection.
std::string Rendezvous::read_line() {
  constexpr std::chrono::milliseconds kAliveInterval{5000};
  try {
    for (;;) {
      if (std::optional<std::string> line = connection_->receive_line(kMaxServerLineBytes, kAliveInterval))
        return *line;
      send(kAlive);
      ++signs_of_life_;
    }
  } catch (const PeerError& error) {
    fail("lost {}: {}", name_, error.what());
  }
}

std::optional<std::string> Rendezvous::stopped() {
  const std::lock_guard lock(mutex_);
  if (verdict_ && !verdict_->good) return prints_reasons_ ? "" : verdict_->why;
  return lost_.empty() ? std::nullopt : std::optional(lost_);
}

void Rendezvous::listen() {
  try {
    for (;;) receive(read_line());
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
  std::optional<std::string> stopped;
  {
    const std::lock_guard lock(mutex_);
    if (kind_of(payload) == Message::verdict) {
      verdict_ = Verdict::from_text(payload);
      if (!verdict_->good) stopped = prints_reasons_ ? "" : verdict_->why;
    } else {
      RoundMessage message = RoundMessage::from_text(payload);
      if (message.round == kLeft) {
        left_.insert(message.data.get<std::uint32_t>());
        return;
      }
      rounds_.insert_or_assign(message.round, std::move(message.data));
    }
  }
  changed_.notify_all();
  if (stopped) stop_(*stopped);
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

RingPart Rendezvous::states(std::size_t number, const std::string& states) {
  const nlohmann::json answer = exchange(fmt::format("{}:{}", kStatesRound, number), states);
  if (answer.contains("problem")) fail("{}", answer.at("problem").get<std::string>());
  return ring_part_from(answer);
}

Contents Rendezvous::contents(std::size_t number, const std::string& digest, bool lacks,
                              const std::vector<Suspect>& suspects) {
  nlohmann::json data{{"digest", digest}, {"lacks", lacks}};
  if (!suspects.empty()) data["suspects"] = suspects;
  return exchange(fmt::format("{}:{}", kContentsRound, number), std::move(data));
}

bool Rendezvous::has_left(std::uint32_t node) {
  const std::lock_guard lock(mutex_);
  return left_.contains(node);
}

void Rendezvous::set_address(nlohmann::json address) {
  send(RoundMessage{kAddress, std::move(address)}.to_text());
}

void Rendezvous::tell_progress(const NodeProgress& progress) {
  try {
    send(RoundMessage{kProgress, progress}.to_text());
  } catch (const Error&) {
    // The listening thread sees that too, and says so.
  }
}

std::uint64_t Rendezvous::bytes() const {
  constexpr std::uint64_t kRecord = 22;  // what TLS adds
  return connection_->bytes() - signs_of_life_ * (std::string_view(kAlive).size() + 1 + kRecord);
}

std::string Rendezvous::own_address() const {
  return local_address(connection_->socket());
}

Verdict Rendezvous::agree(const Verdict& outcome) {
  send(outcome.to_text());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return verdict_ || !lost_.empty(); });
  if (verdict_) return *verdict_;
  fail("{}", lost_);
}

}  // namespace lockstep::transfer
