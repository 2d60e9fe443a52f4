#include "exporters/node/basic_auth.h"

#include <crypt.h>

#include <memory>

namespace lockstep::exporter {
namespace {

constexpr std::size_t kTriesPerSecond = 4;

// Takes the same time wherever the first difference is.
bool equal(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

bool matches(const std::string& password, const std::string& hash) {
  const auto work = std::make_unique<crypt_data>();  // 32 KiB
  const char* result = ::crypt_r(password.c_str(), hash.c_str(), work.get());
  return result != nullptr && equal(result, hash);
}

}  // namespace

Verdict BasicAuth::check(const std::string& name, const std::string& password, const std::string& client,
                         Clock::time_point now) {
  const auto remembered = accepted_.find(name);
  if (remembered != accepted_.end() && equal(remembered->second, password)) return Verdict::accepted;
  std::erase_if(next_try_, [&](const auto& entry) { return entry.second <= now; });
  if (next_try_.size() >= kTriesPerSecond) return Verdict::too_many;
  if (!next_try_.emplace(client, now + std::chrono::seconds(1)).second) return Verdict::too_many;
  const auto user = users_.find(name);
  const bool exists = user != users_.end();
  // The hash of another user takes the same time.
  if (!matches(password, exists ? user->second : users_.begin()->second) || !exists) return Verdict::refused;
  accepted_[name] = password;
  return Verdict::accepted;
}

}  // namespace lockstep::exporter
