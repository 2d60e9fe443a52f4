#include "exporters/node/user_names.h"

#include <pwd.h>

#include <array>
#include <charconv>

namespace lockstep::exporter {
namespace {

constexpr std::chrono::minutes kKeep{10};
constexpr std::size_t kMaxNames = 10'000;

std::string look_up(const std::string& text) {
  uid_t uid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), uid);
  if (error != std::errc() || end != text.data() + text.size()) return "";
  std::array<char, 16384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return "";
  return entry.pw_name;
}

}  // namespace

const std::string& UserNames::name_of(const std::string& uid, Clock::time_point now) {
  if (known_.size() > kMaxNames) known_.clear();
  auto [entry, fresh] = known_.try_emplace(uid);
  if (fresh || now - entry->second.asked > kKeep) entry->second = {.name = look_up(uid), .asked = now};
  return entry->second.name;
}

}  // namespace lockstep::exporter
