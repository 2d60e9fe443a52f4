#include "staging/pack/member_check.h"

#include <string>

#include "common/error.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/shard_check.h"
#include "staging/pack/stray_files.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {

namespace fs = std::filesystem;

void check_members(const fs::path& folder, const Index& index, std::size_t s) {
  const fs::path shard = check_shard_size(folder, index, s);
  TarMembers members(shard);
  const Members indexed = index.has_kind("") ? Members::all : Members::with_ending;
  const auto skipped = [&] { return members.folder() || is_left_out(members.name(), indexed); };
  for (std::size_t i = index.first_sample(s); i < index.first_sample(s + 1); ++i) {
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      do {
        if (!members.next())
          fail("{}: the shard ends before this sample", describe_part(shard, index, i, part));
      } while (skipped() && members.offset() != part.offset);  // in other programs' shards
      const std::string name = members.name();
      if (const std::string_view reason = unsafe_member_name(name); !reason.empty()) {
        fail("{}: member '{}' at offset {} {}", shard.string(), name, members.offset(), reason);
      }
      if (!members.plain_file())
        fail("{}: member '{}' at offset {} is not a regular file", shard.string(), name, members.offset());
      if (name != join_member_name(index.key(i), index.kind(part)) || members.size() != part.size ||
          members.offset() != part.offset) {
        fail("{}: the shard has '{}' with {} bytes at offset {} instead",
             describe_part(shard, index, i, part), name, members.size(), members.offset());
      }
    }
  }
  while (members.next()) {
    if (skipped()) continue;
    fail("{}: member '{}' at offset {} is not in the index", shard.string(), members.name(),
         members.offset());
  }
}

}  // namespace lockstep::pack
