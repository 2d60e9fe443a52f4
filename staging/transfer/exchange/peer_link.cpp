#include "staging/transfer/exchange/peer_link.h"

#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/sockets.h"

namespace lockstep::transfer {
namespace {

// As in munge.h, which sites without munge do not have. Unchanged since version 0.5.
using Context = void*;
constexpr int kSuccess = 0;
constexpr int kOptionUidRestriction = 9;

struct Library {
  Context (*ctx_create)() = nullptr;
  void (*ctx_destroy)(Context) = nullptr;
  int (*ctx_set)(Context, int, ...) = nullptr;
  int (*encode)(char**, Context, const void*, int) = nullptr;
  int (*decode)(const char*, Context, void**, int*, uid_t*, gid_t*) = nullptr;

  Library() {
    void* const handle = ::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    load(handle, "munge_ctx_create", ctx_create);
    load(handle, "munge_ctx_destroy", ctx_destroy);
    load(handle, "munge_ctx_set", ctx_set);
    load(handle, "munge_encode", encode);
    load(handle, "munge_decode", decode);
  }
  template <typename Function>
  static void load(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
  }
  bool good() const {
    return ctx_create != nullptr && ctx_destroy != nullptr && ctx_set != nullptr && encode != nullptr &&
           decode != nullptr;
  }
};

const Library& library() {
  static const Library instance;
  return instance;
}

constexpr std::size_t kMaxLine = 8192;

}  // namespace

std::optional<std::string> munge_encode(const std::string& text) {
  if (!library().good()) return {};
  Context context = library().ctx_create();
  if (context == nullptr) return {};
  library().ctx_set(context, kOptionUidRestriction, static_cast<int>(::geteuid()));
  char* credential = nullptr;
  const int error = library().encode(&credential, context, text.data(), static_cast<int>(text.size()));
  library().ctx_destroy(context);
  std::optional<std::string> encoded;
  if (error == kSuccess && credential != nullptr) encoded = credential;
  std::free(credential);
  return encoded;
}

bool munge_verify(const std::string& credential, const std::string& text) {
  if (!library().good()) return false;
  void* payload = nullptr;
  int length = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  const int error = library().decode(credential.c_str(), nullptr, &payload, &length, &uid, &gid);
  const bool good = error == kSuccess && payload != nullptr && uid == ::geteuid() &&
                    std::string(static_cast<const char*>(payload), static_cast<std::size_t>(length)) == text;
  std::free(payload);
  return good;
}

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
  for (const std::string_view word : split(line, ' ')) {
    if (!word.empty()) words.emplace_back(word);
  }
  return words;
}

std::uint64_t parse_number(const std::string& word) {
  const std::optional<std::uint64_t> number = to_number<std::uint64_t>(word);
  if (!number) throw PeerError("'" + word + "' is not a number");
  return *number;
}

}  // namespace lockstep::transfer
