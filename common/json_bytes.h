// File names in JSON. JSON holds UTF-8, but names are bytes: a name that is not UTF-8 is written as hexadecimal digits
// under another key, so that every name comes back as it was, and nearly all can be read.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/leaf/text.h"

namespace lockstep {

/// Sets object[key], or object[key + "_hex"] if the bytes are not UTF-8.
inline void put_bytes(nlohmann::json& object, const std::string& key, const std::string& bytes) {
  try {
    (void)nlohmann::json(bytes).dump();
    object[key] = bytes;
  } catch (const nlohmann::json::type_error&) {
    object[key + "_hex"] = to_hex(std::as_bytes(std::span(bytes)));
  }
}

/// The reverse. Throws nlohmann::json::exception if there is neither key, and Error if the digits are damaged.
inline std::string bytes_in(const nlohmann::json& object, const std::string& key) {
  const auto digits = object.find(key + "_hex");
  return digits != object.end() ? from_hex(digits->get<std::string>()) : object.at(key).get<std::string>();
}

}  // namespace lockstep
