// Fuzzes the comparison of a shard's tar headers with an index of two members.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "staging/pack/index.h"
#include "staging/pack/shard_check.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

namespace {

/// A temporary folder, removed when the process ends.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-fuzz-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string name = "shard-000000.tar";
  std::ofstream(folder.path() / name, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  IndexBuilder builder(0);
  builder.begin_shard(name);
  builder.add_sample("a");
  builder.add_part("txt", 512, 5, 0);
  builder.add_sample("b");
  builder.add_part("", 1536, 0, 0);
  builder.end_shard(size, {});
  const std::string bytes = builder.finish();
  std::vector<std::uint64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  return fuzz::run([&] {
    const Index index = Index::parse(std::as_bytes(std::span(aligned)).first(bytes.size()), "index");
    check_members(folder.path(), index, 0);
  });
}
