// Reads a list of lengths of lengths.tar.xz: numbers, after lines that begin with '#'.
#pragma once

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace lockstep {

inline std::vector<std::uint32_t> read_lengths(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::uint32_t> lengths;
  while (file >> std::ws && file.peek() == '#')
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  for (std::uint32_t length = 0; file >> length;) lengths.push_back(length);
  return lengths;
}

}  // namespace lockstep
