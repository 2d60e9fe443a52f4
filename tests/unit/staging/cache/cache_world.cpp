#include "tests/unit/staging/cache/cache_world.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <unistd.h>

namespace lockstep::staging_test {

void CacheTest::publish(cache::Store& store, const std::string& name, const std::string& content) {
  const cache::ObjectLock lock = store.lock(name, FileSystem::LockKind::exclusive);
  cache::Incoming incoming = store.begin(name, content.size());
  FileSystem::real().write_file(incoming.files() / "data", content, 0600);
  incoming.publish({.name = name, .source = "/source", .bytes = content.size()});
}

CacheTest::Step::Step(const cache::Store& store, const std::string& step)
    : file_(store.folder() / "leases/held" / step) {
  fs::create_directories(file_.parent_path());
  fd_ = open_file(file_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  EXPECT_EQ(::flock(fd_.get(), LOCK_SH), 0);
}

int CacheTest::as_user(uid_t user, const std::function<void()>& work) {
  return in_child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 ||
        ::setresuid(user, user, user) != 0) {
      fail_errno("cannot become user {}", user);
    }
    work();
  });
}

}  // namespace lockstep::staging_test
