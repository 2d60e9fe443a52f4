// Reads members of JSON objects. Errors name the member that is missing or of the wrong type. (nlohmann::json
// alone would turn true into 1 and -1 into 2^64 - 1.)
//
// Threads: functions; safe from any.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "common/error.h"

namespace lockstep::data {

/// Converts `value` to T: std::uint64_t, double, bool, std::string, a vector of these, or nlohmann::json (a
/// list). Throws Error with its name and the beginning of its text if it has another type.
template <typename T>
T json_as(const nlohmann::json& value, const std::string& name) {
  const auto expect = [&](bool has_type, const char* type) {
    if (!has_type) fail("{} must be {}, not {}", name, type, value.dump().substr(0, 60));
  };
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    const bool counts =
        value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
    expect(counts, "a whole number of at least 0");
  } else if constexpr (std::is_same_v<T, double>) {
    expect(value.is_number(), "a number");
  } else if constexpr (std::is_same_v<T, bool>) {
    expect(value.is_boolean(), "true or false");
  } else if constexpr (std::is_same_v<T, std::string>) {
    expect(value.is_string(), "a string");
  } else {
    expect(value.is_array(), "a list");
    if constexpr (!std::is_same_v<T, nlohmann::json>) {
      T values;
      for (const nlohmann::json& element : value) {
        values.push_back(json_as<typename T::value_type>(element, "an element of " + name));
      }
      return values;
    }
  }
  return value.get<T>();
}

/// The member of an object. Throws Error if it is missing, and as json_as() does.
template <typename T>
T json_member(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) fail("{} is not a JSON object", object.dump().substr(0, 60));
  const auto found = object.find(name);
  if (found == object.end()) fail("\"{}\" is missing", name);
  return json_as<T>(*found, '"' + std::string(name) + '"');
}

}  // namespace lockstep::data
