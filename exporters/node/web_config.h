// The web configuration file that Prometheus' exporters share (--web.config.file), for TLS and basic authentication:
// https://prometheus.io/docs/prometheus/latest/configuration/https/. These keys are supported:
//
//   tls_server_config: { cert_file, key_file, min_version: TLS12 or TLS13,
//                        client_auth_type: NoClientCert or RequireAndVerifyClientCert, client_ca_file }
//   basic_auth_users:  { NAME: bcrypt hash, ... }
// Any other key is refused: if it were ignored, a server could be open that its admin believes to be closed.
//
// Threads: read_web_config() is safe from any; a BasicAuth says it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace lockstep::exporter {

struct WebConfig {
  std::string certificate;         ///< PEM; empty: no TLS
  std::string key;                 ///< PEM
  std::string client_authorities;  ///< PEM; not empty: clients need a certificate of one of them
  bool only_tls13 = false;
  std::map<std::string, std::string> users;  ///< bcrypt hash by name; empty: no authentication

  bool operator==(const WebConfig&) const = default;
};

/// Reads the file, the certificate and the key; their relative paths begin in the file's folder. Throws Error
/// naming the file, with the line if it is known.
WebConfig read_web_config(const std::filesystem::path& file);

enum class Access { accepted, refused, too_many };

/// Checks names and passwords against bcrypt hashes. A hash is slow by design, so a thread of its own computes it, and a
/// password that was right once is remembered. check() and hash() are called by one thread; the verdicts come from another.
class BasicAuth {
 public:
  using Clock = std::chrono::steady_clock;
  using Done = std::function<void(Access)>;

  explicit BasicAuth(std::map<std::string, std::string> users);
  ~BasicAuth() { stop(); }
  BasicAuth(const BasicAuth&) = delete;
  BasicAuth& operator=(const BasicAuth&) = delete;

  bool required() const { return !users_.empty(); }

  /// The verdict if it needs no hash: the password was right before, or this client may not try one now. A client may try
  /// one password a second, and only one at a time. nullopt: call hash(). Call it only if required().
  std::optional<Access> check(const std::string& name, const std::string& password, const std::string& client,
                              Clock::time_point now);

  /// Computes the verdict on another thread, and gives it to `done` there. All clients together get four a second, in the
  /// order in which they came: a client that guesses delays another one by at most one. An unknown name takes as long as
  /// a wrong password.
  void hash(const std::string& name, const std::string& password, const std::string& client,
            Clock::time_point now, Done done);

  /// Answers all that wait with too_many, and ends the thread. Later calls get too_many.
  void stop();

 private:
  struct Try {
    std::string name;
    std::string password;
    std::string client;
    Done done;
  };

  void run();
  Access verdict(const Try& attempt) const;

  const std::map<std::string, std::string> users_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> accepted_;        // password by name
  std::map<std::string, Clock::time_point> next_try_;  // by client
  std::set<std::string> waiting_;                      // clients with a try that has no verdict yet
  std::deque<Try> tries_;
  bool stopped_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace lockstep::exporter
