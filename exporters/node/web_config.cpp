#include "exporters/node/web_config.h"

#include <crypt.h>
#include <yaml-cpp/yaml.h>

#include <memory>
#include <regex>
#include <utility>

#include "common/error.h"
#include "common/files.h"

namespace lockstep::exporter {
namespace {

namespace fs = std::filesystem;

class ConfigReader {
 public:
  explicit ConfigReader(const fs::path& file) : file_(file) {}

  WebConfig read() {
    const YAML::Node root = YAML::Load(read_text_file(file_));
    WebConfig config;
    if (root.IsNull()) return config;
    each(root, [&](const std::string& key, const YAML::Node& value) {
      if (key == "tls_server_config") {
        read_tls(value, config);
      } else if (key == "basic_auth_users") {
        each(value, [&](const std::string& name, const YAML::Node& hash) { add_user(name, hash, config); });
      } else {
        refuse(value, key);
      }
    });
    return config;
  }

 private:
  template <typename Work>
  void each(const YAML::Node& map, const Work& work) {
    if (!map.IsMap()) fail("{}: line {}: expected `key: value` lines", file_.string(), map.Mark().line + 1);
    for (const auto& entry : map) work(entry.first.as<std::string>(), entry.second);
  }

  [[noreturn]] void refuse(const YAML::Node& at, const std::string& key) const {
    fail(
        "{}: line {}: '{}' is not supported; the keys are tls_server_config (cert_file, key_file, min_version, client_auth_type: RequireAndVerifyClientCert, client_ca_file) and basic_auth_users",
        file_.string(), at.Mark().line + 1, key);
  }

  std::string read_file(const YAML::Node& name) const {
    return read_text_file(file_.parent_path() / name.as<std::string>());
  }

  void read_tls(const YAML::Node& tls, WebConfig& config) {
    bool verify_clients = false;
    each(tls, [&](const std::string& key, const YAML::Node& value) {
      if (key == "cert_file") {
        config.certificate = read_file(value);
      } else if (key == "key_file") {
        config.key = read_file(value);
      } else if (key == "min_version" &&
                 (value.as<std::string>() == "TLS12" || value.as<std::string>() == "TLS13")) {
        config.only_tls13 = value.as<std::string>() == "TLS13";
      } else if (key == "client_ca_file") {
        config.client_authorities = read_file(value);
      } else if (key == "client_auth_type" && (value.as<std::string>() == "NoClientCert" ||
                                               value.as<std::string>() == "RequireAndVerifyClientCert")) {
        verify_clients = value.as<std::string>() == "RequireAndVerifyClientCert";
      } else {
        const bool known = key == "min_version" || key == "client_auth_type";
        refuse(value, known ? key + ": " + value.as<std::string>() : key);
      }
    });
    if (verify_clients == config.client_authorities.empty()) {
      fail(
          "{}: tls_server_config needs client_auth_type: RequireAndVerifyClientCert and client_ca_file together",
          file_.string());
    }
    if (config.certificate.empty() || config.key.empty()) {
      fail("{}: tls_server_config needs cert_file and key_file", file_.string());
    }
  }

  void add_user(const std::string& name, const YAML::Node& hash, WebConfig& config) const {
    static const std::regex bcrypt(R"(\$2[aby]\$\d\d\$[./A-Za-z0-9]{53})");
    if (!std::regex_match(hash.as<std::string>(), bcrypt)) {
      fail("{}: line {}: the password of '{}' is not a bcrypt hash: make one with `htpasswd -nBC 10 {}`",
           file_.string(), hash.Mark().line + 1, name, name);
    }
    config.users[name] = hash.as<std::string>();
  }

  fs::path file_;
};

constexpr std::chrono::milliseconds kBetweenTries{250};

// Takes the same time wherever the first difference is.
bool equal(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

bool matches(const std::string& password, const std::string& hash) {
  const auto work = std::make_unique<crypt_data>();  // 32 KiB
  const char* result = ::crypt_r(password.c_str(), hash.c_str(), work.get());
  return result != nullptr && equal(result, hash);
}

}  // namespace

WebConfig read_web_config(const fs::path& file) {
  try {
    return ConfigReader(file).read();
  } catch (const YAML::Exception& error) {
    fail("{}: {}", file.string(), error.what());
  }
}

BasicAuth::BasicAuth(std::map<std::string, std::string> users) : users_(std::move(users)) {
  if (required()) thread_ = std::thread([this] { run(); });
}

std::optional<Access> BasicAuth::check(const std::string& name, const std::string& password,
                                       const std::string& client, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto remembered = accepted_.find(name);
  if (remembered != accepted_.end() && equal(remembered->second, password)) return Access::accepted;
  std::erase_if(next_try_, [&](const auto& entry) { return entry.second <= now; });
  if (stopped_ || next_try_.contains(client) || waiting_.contains(client)) return Access::too_many;
  return std::nullopt;
}

void BasicAuth::hash(const std::string& name, const std::string& password, const std::string& client,
                     Clock::time_point now, Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      next_try_.emplace(client, now + std::chrono::seconds(1));
      waiting_.insert(client);
      tries_.push_back({.name = name, .password = password, .client = client, .done = std::move(done)});
      changed_.notify_one();
      return;
    }
  }
  done(Access::too_many);
}

Access BasicAuth::verdict(const Try& attempt) const {
  const auto user = users_.find(attempt.name);
  const bool exists = user != users_.end();
  // The hash of another user takes the same time.
  const std::string& hash = exists ? user->second : users_.begin()->second;
  return matches(attempt.password, hash) && exists ? Access::accepted : Access::refused;
}

void BasicAuth::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (tries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Try attempt = std::move(tries_.front());
    tries_.pop_front();
    const Clock::time_point next = Clock::now() + kBetweenTries;
    lock.unlock();
    const Access result = verdict(attempt);
    lock.lock();
    if (result == Access::accepted) accepted_[attempt.name] = attempt.password;
    waiting_.erase(attempt.client);
    lock.unlock();
    attempt.done(result);
    lock.lock();
    changed_.wait_until(lock, next, [&] { return stopped_; });
  }
}

void BasicAuth::stop() {
  std::deque<Try> left;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    left.swap(tries_);
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  for (const Try& attempt : left) attempt.done(Access::too_many);
}

}  // namespace lockstep::exporter
