// File names in JSON. JSON holds UTF-8, but names are bytes: a name that is not UTF-8 is written as hexadecimal digits
// under another key, or in an object with that key, so that every name comes back as it was, and nearly all can be read.
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

/// As dump(), with {"bytes_hex": …} for each string that is not UTF-8.
inline std::string dump_any_bytes(nlohmann::json value) {
  const auto encode = [](nlohmann::json& each, const auto& self) -> void {
    if (each.is_structured()) {
      for (nlohmann::json& part : each) self(part, self);
    } else if (each.is_string()) {
      nlohmann::json object;
      put_bytes(object, "bytes", each);
      if (object.contains("bytes_hex")) each = std::move(object);
    }
  };
  encode(value, encode);
  return value.dump();
}

/// The reverse. Throws nlohmann::json::exception, and Error if digits are damaged.
inline nlohmann::json parse_any_bytes(const std::string& text) {
  return nlohmann::json::parse(text, [](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::object_end && value.contains("bytes_hex"))
      value = bytes_in(value, "bytes");
    return true;
  });
}

}  // namespace lockstep
