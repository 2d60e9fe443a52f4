// Damaged files of formats that have a table of their samples: LMDB, HDF5.

#include "staging/pack/formats/format_check.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/convert.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using staging_test::bytes_of;  // not pack::bytes_of()

class FormatTables : public staging_test::StagingTest {
 protected:
  /// A copy of one of the vectors in tests/data/formats.
  fs::path vector(const fs::path& name) const {
    fs::create_directories((folder_ / name).parent_path());
    fs::copy(fs::path(LOCKSTEP_FORMAT_VECTORS) / name, folder_ / name, fs::copy_options::recursive);
    return folder_ / name;
  }

  static void check(const fs::path& source) {
    const Contents contents = contents_of(source);
    check_complete(contents.folder, contents);
  }
};

TEST_F(FormatTables, ATruncatedDatabaseIsRefused) {
  const fs::path file = vector("lmdb/db") / "data.mdb";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size / 2);
  EXPECT_THAT([&] { check(folder_ / "lmdb"); }, ThrowsErrorWith("data.mdb", "truncated to"));
  EXPECT_THAT([&] { open(folder_ / "lmdb"); }, ThrowsErrorWith("data.mdb", "truncated to"));
  fs::resize_file(file, 5000);
  EXPECT_THAT([&] { open(folder_ / "lmdb"); }, ThrowsErrorWith("data.mdb", "truncated"));
  fs::resize_file(file, 100);
  EXPECT_THAT([&] { check(folder_ / "lmdb"); }, ThrowsErrorWith("data.mdb: not an LMDB database"));
}

TEST_F(FormatTables, DamagedPagesOfADatabaseAreRefusedWithTheirNumber) {
  const fs::path file = vector("lmdb/db") / "data.mdb";
  const std::string good = staging_test::read(file);
  int refused = 0;
  for (std::size_t page = 2; page < good.size() / 4096; ++page) {
    std::string bad = good;
    bad.replace(page * 4096, 8, bytes_of(std::uint64_t{9999}));  // the page's own number
    write("lmdb/db/data.mdb", bad);
    try {
      open(folder_ / "lmdb");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("page {} (offset {})", page, page * 4096)));
      ++refused;
    }
  }
  EXPECT_GE(refused, 4);  // pages of the tree and of large values; free pages are not read
}

TEST_F(FormatTables, ATruncatedHdf5FileIsRefused) {
  for (const char* name : {"hdf5/only.h5", "hdf5/several.h5"}) {
    const fs::path file = vector(name);
    fs::resize_file(file, fs::file_size(file) - 1);
    EXPECT_THAT([&] { check(file); }, ThrowsErrorWith(name, "truncated to"));
    EXPECT_THAT([&] { open(file); }, ThrowsErrorWith(name, "truncated to"));
  }
  // Folders above the data, and a file that is named alone, may have any name.
  fs::create_directory(folder_ / ".git");
  for (const char* name : {".git/only.h5", "only.nc"}) {
    fs::copy_file(folder_ / "hdf5/only.h5", folder_ / name);
    EXPECT_THAT([&] { check(folder_ / name); }, ThrowsErrorWith(name, "truncated to"));
  }
  write("x.h5", "no such thing");
  EXPECT_THAT([&] { check(folder_ / "x.h5"); }, ThrowsErrorWith("x.h5: not an HDF5 file"));
}

TEST_F(FormatTables, ReadingDetectsDamagedHdf5Chunks) {
  const fs::path file = vector("hdf5/several.h5");
  const std::string source = file.string() + ":/pictures";
  const auto size = fs::file_size(file);
  int found = 0;
  // Damages every place that may be the compressed data of the pictures: zlib streams begin with these bytes.
  const std::string content = staging_test::read(file);
  for (std::size_t at = content.find("\x78\x5e"); at != std::string::npos && at + 8 < size;
       at = content.find("\x78\x5e", at + 1)) {
    flip_byte(file, at + 6);
    try {
      open(source)->verify();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("several.h5:/pictures, sample"));
      ++found;
    }
    flip_byte(file, at + 6);
  }
  EXPECT_GE(found, 1);
  EXPECT_THAT([&] { (void)open(source)->view(0); }, ThrowsErrorWith("sample 0", "use read()"));
}

TEST_F(FormatTables, NumbersThatAreNotWholeAreNotTokens) {
  std::vector<std::int64_t> into(2);
  const auto widen_floats = [&](float second) {
    const std::vector<float> numbers = {-3, second};
    widen(TokenType::f32, std::as_bytes(std::span(numbers)), into);
  };
  widen_floats(16777216);
  EXPECT_THAT(into, testing::ElementsAre(-3, 16777216));
  EXPECT_THAT([&] { widen_floats(2.5F); }, ThrowsErrorWith("token 1 is 2.5", "whole numbers"));
  EXPECT_THAT([&] { widen_floats(1e20F); }, ThrowsErrorWith("token 1 is 1e+20", "64 bits"));
  const std::vector<double> numbers = {1, std::nan("")};
  EXPECT_THAT([&] { widen(TokenType::f64, std::as_bytes(std::span(numbers)), into); },
              ThrowsErrorWith("token 1 is nan", "whole numbers"));
}

// 2^63 and above would become negative.
TEST_F(FormatTables, TokensThatDoNotFitIntoASignedNumberAreRefusedWithTheirValue) {
  const std::string tokens = bytes_of(std::uint64_t{7}) + bytes_of(std::uint64_t{1} << 63);
  std::vector<std::int64_t> into(2);
  EXPECT_THAT([&] { widen(TokenType::u64, std::as_bytes(std::span(tokens)), into); },
              ThrowsErrorWith("token 1 is 9223372036854775808", "9223372036854775807"));
  TarTokens converter(TokenType::u64);
  EXPECT_THAT([&] { converter.convert(std::as_bytes(std::span(tokens)), "a.h5, sample 0"); },
              ThrowsErrorWith("a.h5, sample 0: token 1 is 9223372036854775808, but tokens"));
}

}  // namespace
}  // namespace lockstep::pack
