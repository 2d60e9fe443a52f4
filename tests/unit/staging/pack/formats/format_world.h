// Makes files of the formats, with the bytes that the formats' own programs write, for tests of the readers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/staging/staging_world.h"

namespace lockstep::staging_test {

/// The bytes of a number, little-endian.
template <typename T>
std::string bytes_of(T number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

/// A Megatron .idx of sequences with these lengths, each a document, for tokens of the type with that code.
std::string megatron_index(int type_code, const std::vector<std::int32_t>& lengths);

/// A TFRecord file of these records.
std::string tfrecord(const std::vector<std::string>& records);

}  // namespace lockstep::staging_test
