#include "exporters/node/basic_auth.h"

#include <crypt.h>

#include <memory>
#include <utility>

namespace lockstep::exporter {
namespace {

constexpr std::chrono::milliseconds kBetweenTries{250};

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

BasicAuth::BasicAuth(std::map<std::string, std::string> users) : users_(std::move(users)) {
  if (required()) thread_ = std::thread([this] { run(); });
}

std::optional<Access> BasicAuth::check(const std::string& name, const std::string& password,
                                       const std::string& client, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto remembered = accepted_.find(name);
  if (remembered != accepted_.end() && equal(remembered->second, password)) return Access::accepted;
  std::erase_if(next_try_, [&](const auto& entry) { return entry.second <= now; });
  if (stopped_ || next_try_.contains(client) || waiting_.contains(client)) return Access::too_many;
  return std::nullopt;
}

void BasicAuth::hash(const std::string& name, const std::string& password, const std::string& client,
                     Clock::time_point now, Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      next_try_.emplace(client, now + std::chrono::seconds(1));
      waiting_.insert(client);
      tries_.push_back({.name = name, .password = password, .client = client, .done = std::move(done)});
      changed_.notify_one();
      return;
    }
  }
  done(Access::too_many);
}

Access BasicAuth::verdict(const Try& attempt) const {
  const auto user = users_.find(attempt.name);
  const bool exists = user != users_.end();
  // The hash of another user takes the same time.
  const std::string& hash = exists ? user->second : users_.begin()->second;
  return matches(attempt.password, hash) && exists ? Access::accepted : Access::refused;
}

void BasicAuth::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (tries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Try attempt = std::move(tries_.front());
    tries_.pop_front();
    const Clock::time_point next = Clock::now() + kBetweenTries;
    lock.unlock();
    const Access result = verdict(attempt);
    lock.lock();
    if (result == Access::accepted) accepted_[attempt.name] = attempt.password;
    waiting_.erase(attempt.client);
    lock.unlock();
    attempt.done(result);
    lock.lock();
    changed_.wait_until(lock, next, [&] { return stopped_; });
  }
}

void BasicAuth::stop() {
  std::deque<Try> left;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    left.swap(tries_);
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  for (const Try& attempt : left) attempt.done(Access::too_many);
}

}  // namespace lockstep::exporter
