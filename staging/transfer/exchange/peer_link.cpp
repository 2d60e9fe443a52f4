#include "staging/transfer/exchange/peer_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <sstream>

#include "common/error.h"
#include "common/sockets.h"
#include "staging/transfer/exchange/munge_credential.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kMaxLine = 8192;

}  // namespace

PeerLink::PeerLink(UniqueFd socket, Session::Role role, const std::string& key, const std::string& step,
                   const PeerTimeouts& timeouts)
    : socket_(std::move(socket)),
      role_(role),
      step_(step),
      timeouts_(timeouts),
      session_(role, key, "exchange-" + step) {
  const timeval often{1, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &often, sizeof often);
  notice_dead_peer(socket_);
}

// The text of a credential. It differs between the sides, so neither can send the other's credential back.
std::string PeerLink::credential_of(Session::Role role) const {
  return fmt::format("lockstep-exchange {} {} {}", step_, session_.id(),
                     role == Session::Role::server ? "server" : "node");
}

std::uint32_t PeerLink::handshake(std::uint32_t own_node_id) {
  const std::string greeting = session_.greeting();
  send_all(std::as_bytes(std::span(greeting)));
  const std::optional<std::string> other = raw_line(timeouts_.silence);
  if (!other) throw PeerSilent("no answer");
  try {
    session_.take_greeting(*other);
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
  const std::optional<std::string> credential = munge_encode(credential_of(role_));
  send(fmt::format("hello {} {}", own_node_id, credential.value_or("-")));
  const std::optional<std::string> hello = receive(timeouts_.silence);
  if (!hello) throw PeerSilent("no answer");
  const std::vector<std::string> words = words_of(*hello);
  if (words.size() != 3 || words[0] != "hello") throw PeerError("unexpected message");
  const Session::Role theirs = role_ == Session::Role::server ? Session::Role::node : Session::Role::server;
  if (credential && !munge_verify(words[2], credential_of(theirs)))
    throw PeerError("munge says that it is not of this user");
  return static_cast<std::uint32_t>(parse_number(words[1]));
}

void PeerLink::send_all(std::span<const std::byte> bytes) {
  RunningTime time;
  std::chrono::milliseconds spent{0};
  while (!bytes.empty()) {
    spent += time.tick();
    if (spent > timeouts_.chunk) throw PeerLost("it stopped receiving");
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put < 0) throw PeerLost("connection lost: " + errno_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void PeerLink::send(const std::string& line, std::span<const std::byte> bytes) {
  const std::string sealed = session_.seal(line);
  send_all(std::as_bytes(std::span(sealed)));
  if (bytes.empty()) return;
  const Session::Tag tag = session_.seal_bytes(bytes);
  send_all(bytes);
  send_all(tag);
}

bool PeerLink::fill(std::chrono::milliseconds wait) {
  pollfd ready{socket_.get(), POLLIN, 0};
  const int count = ::poll(&ready, 1, static_cast<int>(wait.count()));
  if (count < 0 && errno == EINTR) return false;
  if (count == 0) return false;
  std::array<char, 65536> buffer{};
  const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && errno == EINTR) return false;
  if (got < 0) throw PeerLost("connection lost: " + errno_text(errno));
  if (got == 0) throw PeerLost("it closed the connection");
  received_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::optional<std::string> PeerLink::raw_line(std::chrono::milliseconds wait) {
  const auto until = std::chrono::steady_clock::now() + wait;
  for (;;) {
    const std::size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kMaxLine) throw PeerError("unexpected message");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (!fill(std::max(left, std::chrono::milliseconds(0))) && left.count() <= 0) return {};
  }
}

std::optional<std::string> PeerLink::receive(std::chrono::milliseconds wait) {
  std::optional<std::string> line = raw_line(wait);
  if (!line) return {};
  try {
    return session_.open(*line);
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
}

void PeerLink::receive_bytes(std::span<std::byte> into) {
  if (into.empty()) return;
  Session::Tag tag{};
  receive_raw(into);
  receive_raw(tag);
  try {
    session_.open_bytes(into, tag);
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
}

void PeerLink::receive_raw(std::span<std::byte> into) {
  constexpr int kLook = 500;  // milliseconds
  RunningTime time;
  std::chrono::milliseconds spent{0};
  std::chrono::milliseconds silent{0};
  const std::size_t had = std::min(into.size(), received_.size());
  std::memcpy(into.data(), received_.data(), had);
  received_.erase(0, had);
  into = into.subspan(had);
  while (!into.empty()) {
    pollfd ready{socket_.get(), POLLIN, 0};
    const int count = ::poll(&ready, 1, kLook);
    const std::chrono::milliseconds passed = time.tick();
    spent += passed;
    silent = count > 0 ? std::chrono::milliseconds(0) : silent + passed;
    if (silent > timeouts_.silence) throw PeerSilent("it stopped in the middle of a chunk");
    if (spent > timeouts_.chunk) throw PeerError("it sends too slowly");
    if (count <= 0) continue;
    const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw PeerLost("connection lost: " + errno_text(errno));
    if (got == 0) throw PeerLost("it closed the connection");
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

std::chrono::milliseconds RunningTime::tick() {
  constexpr std::chrono::milliseconds kMaxGap{1000};
  const auto now = std::chrono::steady_clock::now();
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_);
  last_ += passed;
  return std::min(passed, kMaxGap);
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

std::uint64_t parse_number(const std::string& word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size())
    throw PeerError("'" + word + "' is not a number");
  return number;
}

}  // namespace lockstep::transfer
