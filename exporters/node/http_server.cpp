#include "exporters/node/http_server.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/network.h"
#include "common/leaf/text.h"
#include "common/sockets.h"
#include "exporters/node/web_config.h"

namespace lockstep::exporter {
namespace {

using Clock = std::chrono::steady_clock;
using Page = std::shared_ptr<const std::string>;

constexpr unsigned kConnections = 64;
// Connections that have been shut down stay open for a moment.
constexpr unsigned kEndingConnections = 64;
// If this many pages are on their way to slow clients, a client gets the latest of them unless it is older than
// kSharedFor.
constexpr std::size_t kPagesAtOnce = 4;
constexpr std::chrono::seconds kSharedFor{5};
constexpr std::chrono::seconds kLongest{10};  // duration of a connection

struct Address {
  std::string host;
  std::string port;
};

Address parse(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos)
    fail_usage("--listen {}: give ADDRESS:PORT, such as 127.0.0.1:9753", listen);
  std::string host = listen.substr(0, colon);
  const std::string port = listen.substr(colon + 1);
  if (!to_number<std::uint16_t>(port))
    fail_usage("--listen {}: the port must be a number up to 65535", listen);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  // "::" takes IPv4 connections too.
  if (host.empty() && ::access("/proc/self/net/if_inet6", F_OK) == 0) host = "::";
  return {.host = host, .port = port};
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
  const int no = 0;
  if (socket && found->ai_family == AF_INET6)
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (!socket || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    fail_errno("cannot listen on {}: check that the address belongs to this node and the port is free",
               listen);
  }
  return socket;
}

// Limits each client to this many requests in each second.
class RequestLimit {
 public:
  explicit RequestLimit(double per_second) : per_second_(per_second) {}
  bool take(const std::string& client, Clock::time_point now) {
    if (now - second_ >= std::chrono::seconds(1)) {
      requests_.clear();
      second_ = now;
    }
    return ++requests_[client] <= per_second_;
  }

 private:
  double per_second_;
  std::map<std::string, unsigned> requests_;  // in the second that began then
  Clock::time_point second_;
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

// The open connections. A new one is never refused: those that last too long are shut down, whatever their clients do, and,
// if there are still too many, the oldest one of the client that has most of them; of clients with equally many, the oldest
// of all. So an overdue connection stays only while nobody else needs a connection or a page.
class OpenConnections {
 public:
  void opened(int fd, const std::string& client) {
    const Clock::time_point now = Clock::now();
    connections_[fd] = {.client = client, .begin = now};
    end_overdue(fd, now);
    shut_down_surplus();
  }
  /// Ends the connections that last too long, except the one that is being answered.
  void end_overdue(int answered, Clock::time_point now) {
    for (auto& [fd, connection] : connections_) {
      if (fd != answered && now - connection.begin >= kLongest) shut_down(fd, connection);
    }
  }
  void closed(int fd) { connections_.erase(fd); }

 private:
  struct Connection {
    std::string client;
    Clock::time_point begin;
    bool ending = false;
  };

  static void shut_down(int fd, Connection& connection) {
    ::shutdown(fd, SHUT_RDWR);
    connection.ending = true;
  }

  void shut_down_surplus() {
    struct Client {
      unsigned connections = 0;
      std::pair<const int, Connection>* oldest = nullptr;
    };
    std::map<std::string, Client> clients;
    unsigned all = 0;
    for (auto& each : connections_) {
      if (each.second.ending) continue;
      ++all;
      Client& client = clients[each.second.client];
      ++client.connections;
      if (client.oldest == nullptr || each.second.begin < client.oldest->second.begin) client.oldest = &each;
    }
    if (all <= kConnections) return;
    const auto fewer = [](const auto& a, const auto& b) {
      if (a.second.connections != b.second.connections) return a.second.connections < b.second.connections;
      return a.second.oldest->second.begin > b.second.oldest->second.begin;
    };
    auto& [fd, oldest] = *std::max_element(clients.begin(), clients.end(), fewer)->second.oldest;
    shut_down(fd, oldest);
  }

  std::map<int, Connection> connections_;
};

int fd_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

std::string client_of(MHD_Connection* connection) {
  return lockstep::client_of(
      *MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
}

void free_page(void* page) {
  delete static_cast<Page*>(page);
}

// The state of a request between the calls of its handler: a password may take a while.
struct Request {
  std::optional<Access> verdict;
};

// Whether the client's certificate is one of our authorities'.
bool has_certificate(MHD_Connection* connection) {
  auto* const session = static_cast<gnutls_session_t>(
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session);
  std::array<gnutls_typed_vdata_st, 1> purpose{};
  std::string client_purpose = GNUTLS_KP_TLS_WWW_CLIENT;
  purpose[0].type = GNUTLS_DT_KEY_PURPOSE_OID;
  purpose[0].data = reinterpret_cast<unsigned char*>(client_purpose.data());
  unsigned status = 0;
  return gnutls_certificate_verify_peers(session, purpose.data(), purpose.size(), &status) ==
             GNUTLS_E_SUCCESS &&
         status == 0;
}

}  // namespace

class HttpServer::State {
 public:
  State(HttpOptions options, std::map<std::string, Content> paths)
      : listen_(options.listen),
        socket_(listen_at(listen_)),
        port_(bound_port(socket_)),
        limit_(options.requests_per_second) {
    for (auto& [path, content] : paths) paths_.emplace(path, PageSource(std::move(content)));
    start(options.web);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { stop(); }

  // The socket stays open meanwhile, so clients that connect now wait a moment.
  void use(const WebConfig& web) {
    const WebConfig before = web_;
    stop();
    try {
      start(web);
    } catch (const Error&) {
      start(before);
      throw;
    }
  }

  std::string url() const {
    const bool tls = !web_.certificate.empty();
    return fmt::format("{}://{}:{}", tls ? "https" : "http", listen_.substr(0, listen_.rfind(':')), port_);
  }

 private:
  void start(const WebConfig& web) {
    web_ = web;
    auth_.emplace(web_.users);
    const int socket =
        ::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0);  // the daemon closes it if it does not start
    std::vector<MHD_OptionItem> options = {
        {MHD_OPTION_LISTEN_SOCKET, socket, nullptr},
        {MHD_OPTION_CONNECTION_LIMIT, kConnections + kEndingConnections, nullptr},
        {MHD_OPTION_CONNECTION_TIMEOUT, kLongest.count(), nullptr},  // without any byte
        {MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<std::intptr_t>(&State::on_connection), this},
        {MHD_OPTION_NOTIFY_COMPLETED, reinterpret_cast<std::intptr_t>(&State::on_completed), this},
    };
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    const bool tls = !web_.certificate.empty();
    if (tls) {
      flags |= MHD_USE_TLS;
      const auto text = [](const char* value) { return const_cast<char*>(value); };  // the interface is C's
      options.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, text(web_.certificate.c_str())});
      options.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, text(web_.key.c_str())});
      options.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0,
                         text(web_.only_tls13 ? "NORMAL:-VERS-ALL:+VERS-TLS1.3"
                                              : "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2")});
      if (!web_.client_authorities.empty())
        options.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, text(web_.client_authorities.c_str())});
    }
    options.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ = MHD_start_daemon(flags, 0, nullptr, nullptr, &State::on_request, this, MHD_OPTION_ARRAY,
                               options.data(), MHD_OPTION_END);
    if (daemon_ == nullptr) {
      fail(
          "cannot serve on {}: {}", listen_,
          tls ? "check that cert_file and key_file are PEM files of the same key, and client_ca_file is a PEM file"
              : "the HTTP server did not start");
    }
  }

  // Passwords first: a daemon must not end while it has suspended connections.
  void stop() {
    if (daemon_ == nullptr) return;
    const UniqueFd socket(MHD_quiesce_daemon(daemon_));  // else it would shut it down for all copies
    auth_->stop();
    MHD_stop_daemon(std::exchange(daemon_, nullptr));
  }

  static void on_connection(void* self, MHD_Connection* connection, void** /*socket*/,
                            MHD_ConnectionNotificationCode code) {
    OpenConnections& connections = static_cast<State*>(self)->connections_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      connections.opened(fd_of(connection), client_of(connection));
    } else {
      connections.closed(fd_of(connection));
    }
  }

  static void on_completed(void* /*self*/, MHD_Connection* /*connection*/, void** request,
                           MHD_RequestTerminationCode /*code*/) {
    delete static_cast<Request*>(std::exchange(*request, nullptr));
  }

  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* url, const char* method,
                               const char* /*version*/, const char* /*body*/, std::size_t* /*body_bytes*/,
                               void** request) {
    try {
      if (*request == nullptr) *request = new Request;
      return static_cast<State*>(self)->answer(connection, url, method, *static_cast<Request*>(*request));
    } catch (const std::exception&) {  // out of memory
      return MHD_NO;
    }
  }

  MHD_Result answer(MHD_Connection* connection, const std::string& url, const std::string& method,
                    Request& request) {
    const Clock::time_point now = Clock::now();
    const std::string client = client_of(connection);
    if (!web_.client_authorities.empty() && !has_certificate(connection))
      return send(connection, MHD_HTTP_FORBIDDEN, "a client certificate is needed\n");
    // Before the limit, so that clients without a password do not use it up.
    if (auth_->required()) {
      if (!request.verdict && !check_password(connection, client, now, request)) return MHD_YES;
      if (*request.verdict == Access::refused)
        return send(connection, MHD_HTTP_UNAUTHORIZED, "name or password is wrong\n");
      if (*request.verdict == Access::too_many) return send(connection, 429, "too many passwords\n");
    }
    if (!limit_.take(client, now)) return send(connection, 429, "too many requests\n");
    if (method != "GET" && method != "HEAD") return send(connection, 405, "only GET\n");
    const auto source = paths_.find(url);
    if (source == paths_.end()) return send(connection, 404, "the metrics are at /metrics\n");
    connections_.end_overdue(fd_of(connection), now);
    try {
      return send(connection, MHD_HTTP_OK, source->second.page(now), source->second.type());
    } catch (const std::exception& error) {
      return send(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, fmt::format("{}\n", error.what()));
    }
  }

  // Returns whether the request has its verdict. If not, the connection sleeps until it has, and answer() is called again.
  bool check_password(MHD_Connection* connection, const std::string& client, Clock::time_point now,
                      Request& request) {
    const auto free_text = [](char* text) { MHD_free(text); };
    char* cleartext = nullptr;
    const std::unique_ptr<char, void (*)(char*)> name(
        MHD_basic_auth_get_username_password(connection, &cleartext), free_text);
    const std::unique_ptr<char, void (*)(char*)> password(cleartext, free_text);
    request.verdict =
        name && password ? auth_->check(name.get(), password.get(), client, now) : Access::refused;
    if (request.verdict) return true;
    MHD_suspend_connection(connection);
    auth_->hash(name.get(), password.get(), client, now, [connection, &request](Access verdict) {
      request.verdict = verdict;
      MHD_resume_connection(connection);
    });
    return false;
  }

  static MHD_Result send(MHD_Connection* connection, unsigned status, const std::string& text) {
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
  UniqueFd socket_;
  int port_ = 0;
  RequestLimit limit_;
  std::map<std::string, PageSource> paths_;
  OpenConnections connections_;
  WebConfig web_;  // MHD has pointers into it
  std::optional<BasicAuth> auth_;
  MHD_Daemon* daemon_ = nullptr;
};

HttpServer::HttpServer(HttpOptions options, std::map<std::string, Content> paths)
    : state_(std::make_unique<State>(std::move(options), std::move(paths))) {
}

HttpServer::~HttpServer() = default;

void HttpServer::use(const WebConfig& web) {
  state_->use(web);
}

std::string HttpServer::url() const {
  return state_->url();
}

}  // namespace lockstep::exporter
