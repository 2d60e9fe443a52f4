// A process that has stolen a step's one-time key and asks one of its nodes for data:
//
//   LOCKSTEP_RENDEZVOUS_KEY=... exchange_stranger HOST PORT JOB.STEP munge|none
//
// Presents a munge credential of its user that every user can decode, or none. Prints "served" if the node
// answers, "turned away" if the node closes the connection.

#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "common/environment.h"
#include "common/error.h"
#include "common/sockets.h"
#include "staging/rendezvous/rendezvous_session.h"

namespace lockstep::transfer {
namespace {

constexpr std::chrono::seconds kPatience{5};

// Uses the program munge: Lockstep's credentials can be decoded by their user only.
std::string credential(const std::string& what) {
  const std::string command = "munge --string '" + what + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::array<char, 4096> text{};
  if (!pipe || std::fgets(text.data(), text.size(), pipe.get()) == nullptr) fail("munge says nothing");
  const std::string line = text.data();
  return line.substr(0, line.find('\n'));
}

// Nothing if the other side has closed the connection.
std::string line_from(const UniqueFd& socket) {
  std::string line;
  for (char c = 0; ::recv(socket.get(), &c, 1, 0) == 1; line += c) {
    if (c == '\n') return line;
  }
  return "";
}

bool served(const std::string& host, int port, const std::string& step, bool with_munge) {
  const UniqueFd socket = connect_to({host}, port, kPatience, "the node");
  const timeval patience{kPatience.count(), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Session session(Session::Role::node, environment::get("LOCKSTEP_RENDEZVOUS_KEY").value_or(""),
                  "exchange-" + step);
  send_all(socket, session.greeting(), "the node");
  const std::string greeting = line_from(socket);
  session.take_greeting(std::string_view(greeting).substr(0, greeting.find('\n')));
  const std::string what = "lockstep-exchange " + step + " " + session.id() + " node";
  send_all(socket, session.seal("hello 1 " + (with_munge ? credential(what) : "-")), "the node");
  const std::string hello = line_from(socket);
  session.open(std::string_view(hello).substr(0, hello.find('\n')));  // the key is right
  try {
    // This source does not exist, but a node that serves this process sends a sign of life every second.
    send_all(socket, session.seal("list 9999"), "the node");
  } catch (const Error&) {
    return false;
  }
  return !line_from(socket).empty();
}

}  // namespace
}  // namespace lockstep::transfer

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    const bool good =
        lockstep::transfer::served(argv[1], std::stoi(argv[2]), argv[3], std::string(argv[4]) == "munge");
    std::cout << (good ? "served" : "turned away") << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "exchange_stranger: " << error.what() << std::endl;
    return 1;
  }
}
