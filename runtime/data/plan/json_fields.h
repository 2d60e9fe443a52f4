// Reads members of JSON objects, and says which one is missing or of the wrong type. (nlohmann::json alone
// would turn true into 1 and -1 into 2^64 - 1.)
//
// Threads: functions; safe from any.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "common/error.h"

namespace lockstep::data {

/// `value` as T: std::uint64_t, double, bool, std::string, a vector of these, or nlohmann::json (a list).
/// Throws Error that names it and shows its beginning.
template <typename T>
T json_as(const nlohmann::json& value, const std::string& name) {
  const auto expect = [&](bool is, const char* what) {
    if (!is) fail("{} is {}, not {}", name, value.dump().substr(0, 60), what);
  };
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    const bool counts =
        value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
    expect(counts, "a whole number from 0 on");
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

/// The member of an object. Throws Error where there is none, and as json_as() does.
template <typename T>
T json_member(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) fail("{} is not a JSON object", object.dump().substr(0, 60));
  const auto found = object.find(name);
  if (found == object.end()) fail("there is no \"{}\"", name);
  return json_as<T>(*found, '"' + std::string(name) + '"');
}

}  // namespace lockstep::data
