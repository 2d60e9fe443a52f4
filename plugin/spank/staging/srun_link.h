// The message from srun to the step's nodes: where its rendezvous listens, the step's one-time key, and the
// folder that relative paths start from. It travels as the value of an option of srun's: options reach the
// nodes in the launch message also under --export=NONE, where no variable does.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::spank {

struct SrunLink {
  static constexpr std::size_t kKeyBytes = 32;

  int port = 0;        ///< 0: no rendezvous
  std::string key;     ///< kKeyBytes as hexadecimal digits
  std::string host;    ///< srun's name for its machine
  std::string folder;  ///< where srun was called

  std::string encode() const;

  /// Throws Error if encode() did not make the text.
  static SrunLink decode(const std::string& text);
};

}  // namespace lockstep::spank
