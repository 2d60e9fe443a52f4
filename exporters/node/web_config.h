// The web configuration file that Prometheus' exporters share (--web.config.file), for TLS and basic authentication:
// https://prometheus.io/docs/prometheus/latest/configuration/https/. These keys are supported:
//
//   tls_server_config: { cert_file, key_file, min_version: TLS12 or TLS13,
//                        client_auth_type: NoClientCert or RequireAndVerifyClientCert, client_ca_file }
//   basic_auth_users:  { NAME: bcrypt hash, ... }
// Any other key is refused: if it were ignored, a server could be open that its admin believes to be closed.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <map>
#include <string>

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

}  // namespace lockstep::exporter
