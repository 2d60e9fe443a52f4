#include "staging/transfer/exchange/peer_link.h"

#include <poll.h>

#include <algorithm>

#include "common/error.h"
#include "common/leaf/number.h"
#include "common/sockets.h"
#include "staging/transfer/exchange/munge_credential.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kMaxLine = 8192;

}  // namespace

PeerLink::PeerLink(UniqueFd socket, Role role, const std::string& key, const std::string& step,
                   const PeerTimeouts& timeouts)
    : connection_(std::move(socket), "exchange " + step, key), role_(role), step_(step), timeouts_(timeouts) {
  notice_dead_peer(connection_.socket());
}

// The text of a credential. It differs between the sides, so neither can send the other's credential back.
std::string PeerLink::credential_of(Role role) const {
  return fmt::format("lockstep-exchange {} {} {}", step_, connection_.exporter(),
                     role == Role::server ? "server" : "client");
}

std::uint32_t PeerLink::handshake(std::uint32_t own_node_id) {
  const bool server = role_ == Role::server;
  if (server) {
    connection_.accept(timeouts_.quiet);
  } else {
    connection_.connect(std::to_string(own_node_id), timeouts_.quiet);
  }
  const std::optional<std::string> credential = munge_encode(credential_of(role_));
  send(fmt::format("hello {} {}", own_node_id, credential.value_or("-")));
  const std::optional<std::string> hello = receive(timeouts_.quiet);
  if (!hello) throw PeerSilent("no answer");
  const std::vector<std::string> words = words_of(*hello);
  if (words.size() != 3 || words[0] != "hello" || (server && words[1] != connection_.client()))
    throw PeerError("unexpected message");
  if (credential && !munge_verify(words[2], credential_of(server ? Role::client : Role::server)))
    throw PeerError("the peer runs as another user");
  return static_cast<std::uint32_t>(parse_number(words[1]));
}

void PeerLink::send(const std::string& line, std::span<const std::byte> bytes) {
  constexpr std::size_t kOneRecord = 4096;  // of TLS; a large chunk is not copied for it
  if (bytes.size() > kOneRecord) {
    connection_.send_line(line, timeouts_.stalled);
    return connection_.send_all(bytes, timeouts_.stalled);
  }
  std::string text = line + "\n";
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  connection_.send_all(std::as_bytes(std::span(text)), timeouts_.stalled);
}

std::optional<std::string> PeerLink::receive(std::chrono::milliseconds wait) {
  return connection_.receive_line(kMaxLine, wait);
}

void PeerLink::receive_bytes(std::span<std::byte> into,
                             const std::function<void(bool came, std::chrono::milliseconds silent)>& looked) {
  constexpr std::chrono::milliseconds kLook{500};
  RunningTime time;
  std::chrono::milliseconds silent{0};
  while (!into.empty()) {
    const std::size_t got = connection_.receive(into);
    into = into.subspan(got);
    silent = got > 0 ? std::chrono::milliseconds(0) : silent + time.tick();
    if (looked) {
      looked(got > 0, silent);
    } else if (silent > timeouts_.quiet) {
      throw PeerSilent("it stopped in the middle of a message");
    }
    if (got == 0) connection_.wait(POLLIN, kLook);
  }
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = line.find_first_not_of(' ', at)) != std::string::npos;) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::uint64_t parse_number(const std::string& word) {
  const std::optional<std::uint64_t> number = to_number<std::uint64_t>(word);
  if (!number) throw PeerError("'" + word + "' is not a number");
  return *number;
}

}  // namespace lockstep::transfer
