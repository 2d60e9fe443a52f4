// A process that has stolen a step's one-time key and asks one of its nodes for data:
//
//   LOCKSTEP_RENDEZVOUS_KEY=... exchange_stranger HOST PORT JOB.STEP munge|none
//
// Presents a munge credential of its user that every user can decode, or none. Prints "served" if the node
// answers, "turned away" if the node closes the connection.

#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "common/environment.h"
#include "common/error.h"
#include "common/sockets.h"
#include "staging/rendezvous/secure_connection.h"

namespace lockstep::transfer {
namespace {

constexpr std::chrono::seconds kTimeout{5};

// Uses the program munge: Lockstep's credentials can be decoded by their user only.
std::string credential(const std::string& what) {
  const std::string command = "munge --string '" + what + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::array<char, 4096> text{};
  if (!pipe || std::fgets(text.data(), text.size(), pipe.get()) == nullptr) fail("munge says nothing");
  const std::string line = text.data();
  return line.substr(0, line.find('\n'));
}

// Throws PeerLost if the other side has closed the connection.
void expect_line(SecureConnection& node) {
  if (!node.receive_line(8192, kTimeout)) fail("the node does not answer");
}

bool served(const std::string& host, int port, const std::string& step, bool with_munge) {
  SecureConnection node(connect_to({host}, port, kTimeout, "the node"), "exchange " + step,
                        environment::get("LOCKSTEP_RENDEZVOUS_KEY").value_or(""));
  node.connect("1", kTimeout);  // fails if the key is wrong
  const std::string proof = "lockstep-exchange " + step + " " + node.exporter() + " client";
  node.send_line("hello 1 " + (with_munge ? credential(proof) : "-"));
  try {
    expect_line(node);  // its hello
    // This ring does not exist, but a node that serves this process sends a sign of life every second.
    node.send_line("lists 9999 0");
    expect_line(node);
    return true;
  } catch (const PeerLost&) {
    return false;
  }
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
