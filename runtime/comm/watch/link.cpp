#include "runtime/comm/watch/link.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace lockstep::comm::watch {
namespace {

struct Header {
  std::uint32_t kind;
  std::uint32_t bytes;
};

constexpr std::uint32_t kLongestBody = 64U << 20;

// The descriptors that a forked child must not keep. Never destroyed: threads may fork while the program
// exits.
struct OpenLinks {
  std::mutex mutex;
  std::vector<int> fds;
};

OpenLinks& open_links() {
  static auto* const instance = [] {
    auto* links = new OpenLinks;
    pthread_atfork([] { open_links().mutex.lock(); }, [] { open_links().mutex.unlock(); },
                   [] {
                     for (const int fd : open_links().fds) ::close(fd);
                     open_links().fds.clear();
                     open_links().mutex.unlock();
                   });
    return links;
  }();
  return *instance;
}

}  // namespace

Link::Link(UniqueFd socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  OpenLinks& links = open_links();
  const std::scoped_lock lock(links.mutex);
  links.fds.push_back(socket_.get());
}

Link::~Link() {
  close();
}

void Link::close() {
  if (!socket_) return;
  OpenLinks& links = open_links();
  const std::scoped_lock lock(links.mutex);
  std::erase(links.fds, socket_.get());
  socket_.reset();
}

void Link::send(Kind kind, std::string_view body) {
  if (!open()) return;
  const Header header{static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(body.size())};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof header);
  unsent_.append(body);
  send_rest();
}

void Link::send_rest() {
  while (open() && !unsent_.empty()) {
    const ssize_t sent = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      unsent_.clear();  // receive() finds the end
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
}

Link::End Link::receive(std::vector<Message>& messages) {
  End end = End::none;
  std::array<char, 16384> part{};
  while (end == End::none) {
    const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), 0);
    if (got > 0) {
      received_.append(part.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
      end = End::closed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      end = End::broken;
    }
  }
  std::size_t begin = 0;
  Header header{};
  while (received_.size() - begin >= sizeof header) {
    std::memcpy(&header, received_.data() + begin, sizeof header);
    if (header.bytes > kLongestBody) return End::broken;
    if (received_.size() - begin - sizeof header < header.bytes) break;
    messages.push_back(
        {static_cast<Kind>(header.kind), received_.substr(begin + sizeof header, header.bytes)});
    begin += sizeof header + header.bytes;
  }
  received_.erase(0, begin);
  return end;
}

}  // namespace lockstep::comm::watch
