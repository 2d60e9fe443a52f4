#include "exporters/node/basic_auth.h"

#include <crypt.h>

#include <memory>

namespace lockstep::exporter {
namespace {

// The hash of no password that anybody knows, with the usual cost.
constexpr const char* kNobody = "$2b$10$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu";

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

Verdict BasicAuth::check(const std::string& name, const std::string& password, Clock::time_point now) {
  const auto remembered = accepted_.find(name);
  if (remembered != accepted_.end() && equal(remembered->second, password)) return Verdict::accepted;
  if (now < next_try_) return Verdict::too_many;
  next_try_ = now + std::chrono::seconds(1);
  const auto user = users_.find(name);
  if (!matches(password, user == users_.end() ? kNobody : user->second) || user == users_.end()) {
    return Verdict::refused;
  }
  accepted_[name] = password;
  return Verdict::accepted;
}

}  // namespace lockstep::exporter
