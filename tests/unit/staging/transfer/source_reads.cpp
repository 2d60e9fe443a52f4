#include "tests/unit/staging/transfer/source_reads.h"

#include <string>

namespace lockstep::transfer {

namespace fs = std::filesystem;

ssize_t SourceReads::call(const FileCall& call) {
  const std::string file = call.path;
  if (call.kind != Kind::read || !file.starts_with(folder_.string() + "/")) return FileSystem::call(call);
  const bool of_shard = fs::path(file).extension() == ".tar";
  const SourceRead read{.n = ++reads_,
                        .of_shards = of_shard ? ++shard_reads_ : 0,
                        .file = file,
                        .offset = static_cast<std::uint64_t>(call.offset)};
  if (before_) before_(read);
  const ssize_t got = FileSystem::call(call);
  if (after_ && got > 0) after_(read, {call.into, static_cast<std::size_t>(got)});
  return got;
}

}  // namespace lockstep::transfer
