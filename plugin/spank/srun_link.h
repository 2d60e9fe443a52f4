// What srun tells the step's nodes beside the user's options: where its rendezvous listens, the step's
// one-time key, and the folder that relative paths are seen from. It travels as the value of an option of
// srun's own, since options reach the nodes in the launch message also under --export=NONE, where no variable
// does.
//
// Threads: a value.
#pragma once

#include <string>

namespace lockstep::spank {

struct SrunLink {
  int port = 0;        ///< 0: no rendezvous
  std::string key;     ///< 64 hex digits
  std::string host;    ///< srun's own name for its machine
  std::string folder;  ///< where srun was called

  std::string encode() const;

  /// Throws Refusal where the text is no link.
  static SrunLink decode(const std::string& text);
};

/// A TCP socket bound to a port that srun's rendezvous may use (0: any), not listening yet; -1 where none is
/// free. Closes on exec.
int bind_port(int first, int last, int& port);

/// 256 random bits of the kernel, as hex digits.
std::string random_key();

}  // namespace lockstep::spank
