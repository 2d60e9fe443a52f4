#include "exporters/node/http_server.h"

#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "exporters/node/basic_auth.h"

namespace lockstep::exporter {
namespace {

using Clock = std::chrono::steady_clock;
using Page = std::shared_ptr<const std::string>;

constexpr unsigned kConnections = 64;
constexpr unsigned kConnectionsPerAddress = 32;
// If this many pages are on their way to slow clients, a client gets the latest of them unless it is older than
// kSharedFor.
constexpr std::size_t kPagesAtOnce = 4;
constexpr std::chrono::seconds kSharedFor{5};

struct Address {
  std::string host;
  std::string port;
};

Address parse(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos)
    fail_usage("--listen {}: give ADDRESS:PORT, such as 127.0.0.1:9753", listen);
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {.host = host, .port = listen.substr(colon + 1)};
}

UniqueFd listen_at(const std::string& listen) {
  const Address address = parse(listen);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), address.port.c_str(),
                                  &hints, &found);
  if (error != 0) fail("cannot listen on {}: {}", listen, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (!socket || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    fail_errno("cannot listen on {}: check that the address belongs to this node and the port is free",
               listen);
  }
  return socket;
}

int port_of(const UniqueFd& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXSERV> port{};
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, nullptr, 0, port.data(), port.size(),
                NI_NUMERICSERV);
  return std::stoi(port.data());
}

// Limits each client to this many requests a second on average, and to as many at once after a pause.
class RequestLimit {
 public:
  explicit RequestLimit(double per_second) : per_second_(per_second) {}
  bool take(const std::string& client, Clock::time_point now) {
    constexpr std::chrono::seconds kPause{1};  // after it a client has all its tokens again
    if (now - cleaned_ >= kPause) {
      std::erase_if(clients_, [&](const auto& entry) { return now - entry.second.last >= kPause; });
      cleaned_ = now;
    }
    Tokens& tokens = clients_.try_emplace(client, Tokens{per_second_, now}).first->second;
    const double seconds = std::chrono::duration<double>(now - tokens.last).count();
    tokens = {std::min(per_second_, tokens.count + per_second_ * seconds), now};
    if (tokens.count < 1) return false;
    tokens.count -= 1;
    return true;
  }

 private:
  struct Tokens {
    double count;
    Clock::time_point last;
  };
  double per_second_;
  std::map<std::string, Tokens> clients_;
  Clock::time_point cleaned_;
};

// The pages of one path.
class PageSource {
 public:
  explicit PageSource(Content content) : content_(std::move(content)) {}
  const std::string& type() const { return content_.type; }

  Page page(Clock::time_point now) {
    std::erase_if(sending_, [](const auto& page) { return page.expired(); });
    if (sending_.size() >= kPagesAtOnce && now - made_ < kSharedFor) {
      if (Page latest = sending_.back().lock()) return latest;
    }
    Page page = std::make_shared<const std::string>(content_.make());
    sending_.emplace_back(page);
    made_ = now;
    return page;
  }

 private:
  Content content_;
  std::vector<std::weak_ptr<const std::string>> sending_;
  Clock::time_point made_;
};

// The open connections. One that lasts too long is shut down, whatever its client does.
class ConnectionDeadlines {
 public:
  explicit ConnectionDeadlines(std::chrono::milliseconds limit)
      : limit_(limit), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void opened(int fd) {
    const std::lock_guard lock(mutex_);
    deadlines_[fd] = Clock::now() + limit_;
    changed_.notify_one();
  }
  void closed(int fd) {
    const std::lock_guard lock(mutex_);
    deadlines_.erase(fd);
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const Clock::time_point now = Clock::now();
      Clock::time_point next = now + std::chrono::hours(1);
      for (auto& [fd, deadline] : deadlines_) {
        if (deadline <= now) {
          ::shutdown(fd, SHUT_RDWR);
          deadline = now + limit_;
        }
        next = std::min(next, deadline);
      }
      // A new connection ends later than those that are open.
      changed_.wait_until(lock, stop, next, [&] { return next > now + limit_ && !deadlines_.empty(); });
    }
  }

  std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<int, Clock::time_point> deadlines_;
  std::jthread thread_;  // the last member: it uses the others
};

int fd_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

// The bytes of the client's address. A local user may take any address of 127.0.0.0/8, and an IPv6 machine any of its
// /64, so these count as one client each.
std::string client_of(MHD_Connection* connection) {
  const sockaddr* client =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
  const auto bytes = [](const void* begin, std::size_t count) {
    return std::string(static_cast<const char*>(begin), count);
  };
  std::string v4;
  if (client->sa_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6*>(client)->sin6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&address)) return bytes(&address, 8);
    v4 = bytes(&address.s6_addr[12], 4);
  } else {
    v4 = bytes(&reinterpret_cast<const sockaddr_in*>(client)->sin_addr, 4);
  }
  return v4.front() == IN_LOOPBACKNET ? "loopback" : v4;
}

void free_page(void* page) {
  delete static_cast<Page*>(page);
}

}  // namespace

class HttpServer::State {
 public:
  State(HttpOptions options, std::map<std::string, Content> paths)
      : listen_(options.listen),
        tls_(!options.web.certificate.empty()),
        auth_(options.web.users),
        limit_(options.requests_per_second),
        deadlines_(options.connection) {
    for (auto& [path, content] : paths) paths_.emplace(path, PageSource(std::move(content)));
    UniqueFd socket = listen_at(listen_);
    port_ = port_of(socket);
    start(socket, options.web);
    socket.release();  // the daemon closes it
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { MHD_stop_daemon(daemon_); }

  std::string url() const {
    return fmt::format("{}://{}:{}", tls_ ? "https" : "http", listen_.substr(0, listen_.rfind(':')), port_);
  }

 private:
  void start(const UniqueFd& socket, const WebConfig& web) {
    std::vector<MHD_OptionItem> options = {
        {MHD_OPTION_LISTEN_SOCKET, socket.get(), nullptr},
        {MHD_OPTION_CONNECTION_LIMIT, kConnections, nullptr},
        {MHD_OPTION_PER_IP_CONNECTION_LIMIT, kConnectionsPerAddress, nullptr},
        {MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<std::intptr_t>(&State::on_connection), this},
    };
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD;
    if (tls_) {
      flags |= MHD_USE_TLS;
      const auto text = [](const char* value) { return const_cast<char*>(value); };  // the interface is C's
      options.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, text(web.certificate.c_str())});
      options.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, text(web.key.c_str())});
      options.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0,
                         text(web.only_tls13 ? "NORMAL:-VERS-ALL:+VERS-TLS1.3"
                                             : "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2")});
    }
    options.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ = MHD_start_daemon(flags, 0, nullptr, nullptr, &State::on_request, this, MHD_OPTION_ARRAY,
                               options.data(), MHD_OPTION_END);
    if (daemon_ == nullptr) {
      fail("cannot serve on {}: {}", listen_,
           tls_ ? "check that cert_file and key_file are PEM files of the same key"
                : "the HTTP server did not start");
    }
  }

  static void on_connection(void* self, MHD_Connection* connection, void** /*socket*/,
                            MHD_ConnectionNotificationCode code) {
    ConnectionDeadlines& deadlines = static_cast<State*>(self)->deadlines_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      deadlines.opened(fd_of(connection));
    } else {
      deadlines.closed(fd_of(connection));
    }
  }

  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* url, const char* method,
                               const char* /*version*/, const char* /*body*/, std::size_t* /*body_bytes*/,
                               void** /*request*/) {
    try {
      return static_cast<State*>(self)->answer(connection, url, method);
    } catch (const std::exception&) {  // out of memory
      return MHD_NO;
    }
  }

  MHD_Result answer(MHD_Connection* connection, const std::string& url, const std::string& method) {
    const Clock::time_point now = Clock::now();
    const std::string client = client_of(connection);
    // First, so that clients without a password do not use up the limit.
    if (auth_.required()) {
      switch (check_password(connection, client, now)) {
        case Verdict::accepted:
          break;
        case Verdict::refused:
          return send(connection, MHD_HTTP_UNAUTHORIZED, "name or password is wrong\n");
        case Verdict::too_many:
          return send(connection, 429, "too many passwords\n");
      }
    }
    if (!limit_.take(client, now)) return send(connection, 429, "too many requests\n");
    if (method != "GET" && method != "HEAD") return send(connection, 405, "only GET\n");
    const auto source = paths_.find(url);
    if (source == paths_.end()) return send(connection, 404, "the metrics are at /metrics\n");
    return send(connection, MHD_HTTP_OK, source->second.page(now), source->second.type());
  }

  Verdict check_password(MHD_Connection* connection, const std::string& client, Clock::time_point now) {
    const auto free_text = [](char* text) { MHD_free(text); };
    char* given = nullptr;
    const std::unique_ptr<char, void (*)(char*)> name(
        MHD_basic_auth_get_username_password(connection, &given), free_text);
    const std::unique_ptr<char, void (*)(char*)> password(given, free_text);
    if (!name || !password) return Verdict::refused;
    return auth_.check(name.get(), password.get(), client, now);
  }

  static MHD_Result send(MHD_Connection* connection, unsigned status, const char* text) {
    return send(connection, status, std::make_shared<const std::string>(text), "text/plain; charset=utf-8");
  }

  static MHD_Result send(MHD_Connection* connection, unsigned status, const Page& page,
                         const std::string& type) {
    MHD_Response* response = MHD_create_response_from_buffer_with_free_callback_cls(
        page->size(), const_cast<char*>(page->data()), &free_page, new Page(page));
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type.c_str());
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_UNAUTHORIZED) {
      MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE,
                              "Basic realm=\"lockstep-exporter\"");
    }
    const MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
  }

  std::string listen_;
  bool tls_;
  int port_ = 0;
  BasicAuth auth_;
  RequestLimit limit_;
  std::map<std::string, PageSource> paths_;
  ConnectionDeadlines deadlines_;
  MHD_Daemon* daemon_ = nullptr;
};

HttpServer::HttpServer(HttpOptions options, std::map<std::string, Content> paths)
    : state_(std::make_unique<State>(std::move(options), std::move(paths))) {
}

HttpServer::~HttpServer() = default;

std::string HttpServer::url() const {
  return state_->url();
}

}  // namespace lockstep::exporter
