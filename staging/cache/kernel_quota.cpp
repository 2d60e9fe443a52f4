#include "staging/cache/kernel_quota.h"

#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <sys/quota.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/leaf/unique_fd.h"

namespace lockstep::cache {

std::string enforced_quotas(const std::filesystem::path& folder) {
#ifdef SYS_quotactl_fd
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // ext4 answers this call too. The type of quota in it does not matter.
  fs_quota_stat state{};
  if (!fd || ::syscall(SYS_quotactl_fd, fd.get(), QCMD(Q_XGETQSTAT, USRQUOTA), 0, &state) != 0) return "";
  const bool user = (state.qs_flags & FS_QUOTA_UDQ_ENFD) != 0;
  const bool project = (state.qs_flags & FS_QUOTA_PDQ_ENFD) != 0;
  if (user && project) return "user quotas and project quotas";
  if (user) return "user quotas";
  return project ? "project quotas" : "";
#else
  (void)folder;
  return "";
#endif
}

}  // namespace lockstep::cache
