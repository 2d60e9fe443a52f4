#include "staging/transfer/exchange/exchange_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <sstream>

#include "common/error.h"
#include "staging/rendezvous/rendezvous_socket.h"
#include "staging/transfer/exchange/peer_proof.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kLongestExchangeLine = 8192;

}  // namespace

Link::Link(UniqueFd socket, Session::Role role, const std::string& key, const std::string& step,
           const PeerPatience& patience)
    : socket_(std::move(socket)),
      role_(role),
      step_(step),
      patience_(patience),
      session_(role, key, "exchange-" + step) {
  const timeval often{1, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &often, sizeof often);
  notice_dead_peer(socket_);
}

// What the side of this role has munge say: each of the two says its own, so neither can be sent back.
std::string Link::credential_of(Session::Role role) const {
  return fmt::format("lockstep-exchange {} {} {}", step_, session_.id(),
                     role == Session::Role::server ? "server" : "node");
}

std::uint32_t Link::shake_hands(std::uint32_t own_node_id) {
  const std::string greeting = session_.greeting();
  send_all(std::as_bytes(std::span(greeting)));
  const std::optional<std::string> other = raw_line(patience_.silence);
  if (!other) throw PeerError("it does not answer");
  try {
    session_.take_greeting(*other);
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
  const std::optional<std::string> credential = munge_encode(credential_of(role_));
  send(fmt::format("hello {} {}", own_node_id, credential.value_or("-")));
  const std::optional<std::string> hello = receive(patience_.silence);
  if (!hello) throw PeerError("it does not answer");
  const std::vector<std::string> words = words_of(*hello);
  if (words.size() != 3 || words[0] != "hello") throw PeerError("it does not say who it is");
  const Session::Role theirs = role_ == Session::Role::server ? Session::Role::node : Session::Role::server;
  if (credential && !munge_proves(words[2], credential_of(theirs)))
    throw PeerError("munge does not know it as this user's");
  return static_cast<std::uint32_t>(number_of(words[1]));
}

void Link::send_all(std::span<const std::byte> bytes) {
  const auto until = std::chrono::steady_clock::now() + patience_.chunk;
  while (!bytes.empty()) {
    if (std::chrono::steady_clock::now() > until) throw PeerError("it takes nothing any more");
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put < 0) throw PeerLost("it is gone: " + errno_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void Link::send(const std::string& line, std::span<const std::byte> bytes) {
  const std::string sealed = session_.seal(line);
  send_all(std::as_bytes(std::span(sealed)));
  send_all(bytes);
}

bool Link::fill(std::chrono::milliseconds wait) {
  pollfd ready{socket_.get(), POLLIN, 0};
  const int count = ::poll(&ready, 1, static_cast<int>(wait.count()));
  if (count < 0 && errno == EINTR) return false;
  if (count == 0) return false;
  std::array<char, 65536> buffer{};
  const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && errno == EINTR) return false;
  if (got < 0) throw PeerLost("it is gone: " + errno_text(errno));
  if (got == 0) throw PeerLost("it has closed the connection");
  received_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::optional<std::string> Link::raw_line(std::chrono::milliseconds wait) {
  const auto until = std::chrono::steady_clock::now() + wait;
  for (;;) {
    const std::size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kLongestExchangeLine) throw PeerError("it sends no lines");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (!fill(std::max(left, std::chrono::milliseconds(0))) && left.count() <= 0) return {};
  }
}

std::optional<std::string> Link::receive(std::chrono::milliseconds wait) {
  std::optional<std::string> line = raw_line(wait);
  if (!line) return {};
  try {
    return session_.open(*line);
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
}

void Link::receive_bytes(std::span<std::byte> into) {
  const auto until = std::chrono::steady_clock::now() + patience_.chunk;
  const std::size_t had = std::min(into.size(), received_.size());
  std::memcpy(into.data(), received_.data(), had);
  received_.erase(0, had);
  into = into.subspan(had);
  while (!into.empty()) {
    pollfd ready{socket_.get(), POLLIN, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(patience_.silence.count()));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) throw PeerError("it has stopped in the middle of a chunk");
    if (std::chrono::steady_clock::now() > until) throw PeerError("it sends too slowly");
    const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw PeerLost("it is gone: " + errno_text(errno));
    if (got == 0) throw PeerLost("it has closed the connection");
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

std::uint64_t number_of(const std::string& word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size())
    throw PeerError("'" + word + "' is no number");
  return number;
}

}  // namespace lockstep::transfer
