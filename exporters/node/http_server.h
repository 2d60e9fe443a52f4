// A small HTTP server for pages of metrics, with TLS, client certificates and basic authentication. One thread serves all
// clients and never waits for one, nor for the hash of a password. The number of connections, their duration and the
// requests per second of one address are limited. If there are too many connections, the oldest one of the address that has
// most of them ends, so no client keeps others out. Slow clients share pages, so many of them cost no memory.
//
// Threads: the constructor returns when the server serves; pages are made on its thread, one at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "exporters/node/web_config.h"

namespace lockstep::exporter {

/// A page that is served at a path.
struct Content {
  std::string type;                   ///< Content-Type
  std::function<std::string()> make;  ///< if it throws, the client gets 500 with the message
};

struct HttpOptions {
  std::string listen;  ///< ADDRESS:PORT, [IPV6]:PORT, or :PORT for all addresses; port 0: any free port
  WebConfig web;
  double requests_per_second = 20;  ///< of one address; more are answered with 429 Too Many Requests
};

class HttpServer {
 public:
  /// Throws Error naming the address if it cannot be used, or if certificate and key are not a pair.
  HttpServer(HttpOptions options, std::map<std::string, Content> paths);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Uses other certificates and passwords from now on. Connections that are open end. Throws Error if certificate and key
  /// are not a pair, and goes on with those before.
  void use(const WebConfig& web);

  /// "http://127.0.0.1:9753" with the port that it listens on.
  std::string url() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::exporter
