#include "exporters/node/web_config.h"

#include <yaml-cpp/yaml.h>

#include <regex>

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

}  // namespace

WebConfig read_web_config(const fs::path& file) {
  try {
    return ConfigReader(file).read();
  } catch (const YAML::Exception& error) {
    fail("{}: {}", file.string(), error.what());
  }
}

}  // namespace lockstep::exporter
