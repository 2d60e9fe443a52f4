// Damaged files of formats that have a table of their samples: MDS, npy, LMDB, HDF5.

#include <nlohmann/json.hpp>

#include "staging/pack/formats/format_check.h"
#include "staging/pack/formats/mds_index.h"
#include "staging/pack/formats/npy_header.h"
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

  void change_json(const fs::path& file, const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json json = nlohmann::json::parse(staging_test::read(file));
    change(json);
    write(file.lexically_relative(folder_), json.dump());
  }

  static void check(const fs::path& source) {
    const Contents contents = contents_of(source);
    check_complete(contents.folder, contents);
  }
};

TEST_F(FormatTables, AnMdsShardOutsideTheFolderIsRefused) {
  const fs::path mds = vector("mds/tokens");
  write("mds/shard.00000.mds", staging_test::read(mds / "shard.00000.mds"));
  for (const char* name : {"../shard.00000.mds", "/etc/passwd", ".."}) {
    change_json(mds / "index.json",
                [&](nlohmann::json& json) { json["shards"][0]["raw_data"]["basename"] = name; });
    EXPECT_THAT([&] { open(mds); }, ThrowsErrorWith("index.json, shard 0", name));
    EXPECT_THAT([&] { check(mds); }, ThrowsErrorWith("index.json, shard 0", name));
  }
}

TEST_F(FormatTables, AnMdsShardThatIsMissingOrHasAnotherLengthIsRefused) {
  const fs::path mds = vector("mds/columns");
  fs::resize_file(mds / "shard.00001.mds", 100);
  EXPECT_THAT([&] { check(mds); }, ThrowsErrorWith("shard.00001.mds does not match index.json: 100 bytes"));
  EXPECT_THAT([&] { open(mds); }, ThrowsErrorWith("shard.00001.mds does not match index.json: 100 bytes"));
  EXPECT_NO_THROW(check(mds / "shard.00000.mds"));
  fs::remove(mds / "shard.00001.mds");
  EXPECT_THAT([&] { check(mds); }, ThrowsErrorWith("shard.00001.mds is missing"));
  EXPECT_EQ(open(mds / "shard.00000.mds")->size(), 3U);
}

TEST_F(FormatTables, DamagedMdsTablesAreRefusedWithSampleAndOffset) {
  const fs::path shard = vector("mds/columns") / "shard.00000.mds";
  flip_byte(shard, 0);
  EXPECT_THAT([&] { open(folder_ / "mds/columns"); },
              ThrowsErrorWith("shard.00000.mds", "samples, but its index.json says 3"));
  flip_byte(shard, 0);
  flip_byte(shard, 4 + 4 + 3);  // the second sample's begin
  EXPECT_THAT([&] { open(folder_ / "mds/columns"); }, ThrowsErrorWith("shard.00000.mds, sample 1, offset"));
  flip_byte(shard, 4 + 4 + 3);
  const auto reader = open(folder_ / "mds/columns");
  flip_byte(shard, reader->parts(0)[0].offset - 8);  // the length of its first column
  EXPECT_THAT([&] { (void)reader->bytes(0); },
              ThrowsErrorWith("shard.00000.mds, sample 0", "columns do not fill"));
}

TEST_F(FormatTables, TheHashesInTheMdsIndexDetectDamagedContent) {
  const fs::path mds = vector("mds/tokens");
  flip_byte(mds / "shard.00000.mds", open(mds)->parts(1)[0].offset + 3);
  EXPECT_THAT([&] { open(mds)->verify(); }, ThrowsErrorWith("shard.00000.mds: its sha1 "));
}

TEST_F(FormatTables, MdsDataInCompressedFormOnlyAreRefused) {
  const fs::path mds = vector("mds/tokens");
  fs::rename(mds / "shard.00000.mds", mds / "shard.00000.mds.zstd");
  change_json(mds / "index.json", [&](nlohmann::json& json) {
    json["shards"][0]["zip_data"] = json["shards"][0]["raw_data"];
    json["shards"][0]["zip_data"]["basename"] = "shard.00000.mds.zstd";
  });
  EXPECT_EQ(contents_of(mds).format, Format::mds);
  EXPECT_NO_THROW(check(mds));
  EXPECT_THAT([&] { open(mds); }, ThrowsErrorWith("shard.00000.mds", "compressed form only"));
}

TEST_F(FormatTables, AnInvalidMdsIndexIsRefusedWithTheReason) {
  const auto refused = [](const std::string& text, auto... texts) {
    EXPECT_THAT([&] { parse_mds_index(text, "i.json"); }, ThrowsErrorWith("i.json", texts...));
  };
  refused("{", "damaged MDS index");
  refused("{}", "shards");
  refused(R"({"shards":[]})", "no shards");
  refused(R"({"shards":[{"version":3}]})", "shard 0", "version 3");
  refused(R"({"shards":[{"version":2,"format":"jsonl"}]})", "format 'jsonl'");
  refused(R"({"shards":[{"version":2,"format":"mds","raw_data":{"basename":"a","bytes":"x","hashes":{}}}]})",
          "shard 0");
}

TEST_F(FormatTables, SizesThatAreNotIntegersAreRefused) {
  const fs::path mds = vector("mds/tokens");
  const nlohmann::json good = nlohmann::json::parse(staging_test::read(mds / "index.json"));
  const auto refused = [&](const char* pointer, const nlohmann::json& value, auto... texts) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    EXPECT_THAT([&] { parse_mds_index(bad.dump(), "i.json"); }, ThrowsErrorWith("i.json, shard 0", texts...));
  };
  refused("/shards/0/version", 1e94, "not an integer");
  refused("/shards/0/samples", -1, "not an integer");
  refused("/shards/0/raw_data/bytes", 2.5, "not an integer");
  refused("/shards/0/column_sizes/0", 1e94, "not an integer");
  refused("/shards/0/column_sizes/0", std::uint64_t{1} << 32, "column of 4294967296 bytes");
  refused("/shards/0/samples", std::uint64_t{1} << 31, "do not fit into a shard");
}

TEST_F(FormatTables, MdsSamplesThatOverlapAreRefused) {
  MdsShard shard;
  shard.samples = 2;
  shard.raw.bytes = 30;
  const auto table = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return bytes_of(std::uint32_t{2}) + bytes_of(a) + bytes_of(b) + bytes_of(c);
  };
  EXPECT_THAT(parse_mds_table(table(16, 20, 30), shard, "s"), testing::ElementsAre(16, 20, 30));
  EXPECT_THAT([&] { parse_mds_table(table(15, 20, 30), shard, "s"); },
              ThrowsErrorWith("s, sample 0, offset 15"));
  EXPECT_THAT([&] { parse_mds_table(table(25, 20, 30), shard, "s"); },
              ThrowsErrorWith("s, sample 1, offset 20"));
  EXPECT_THAT([&] { parse_mds_table(table(16, 31, 30), shard, "s"); },
              ThrowsErrorWith("s, sample 1, offset 31"));
  EXPECT_THAT([&] { parse_mds_table(table(16, 20, 29), shard, "s"); },
              ThrowsErrorWith("ends at 29, but the file ends at 30"));
}

TEST_F(FormatTables, AnNpyOfAnotherLengthIsNotComplete) {
  write("a.npy", npy("<u2", "(3, 2)", std::string(12, 'x')));
  EXPECT_NO_THROW(check(folder_ / "a.npy"));
  for (const std::size_t bytes : {11U, 13U}) {
    write("a.npy", npy("<u2", "(3, 2)", std::string(bytes, 'x')));
    EXPECT_THAT([&] { check(folder_ / "a.npy"); }, ThrowsErrorWith("a.npy does not match its header"));
    EXPECT_THAT([&] { open(folder_ / "a.npy"); }, ThrowsErrorWith("a.npy does not match its header"));
  }
}

TEST_F(FormatTables, InvalidNpyHeadersAreRefused) {
  const auto refused = [](const std::string& bytes, auto... texts) {
    EXPECT_THAT([&] { parse_npy_header(bytes, "a.npy"); }, ThrowsErrorWith("a.npy", texts...)) << bytes;
  };
  refused("", "not a .npy file");
  refused("\x93NUMPX\1\0  ", "not a .npy file");
  refused("\x93NUMPY\4" + std::string(3, '\0'), "version 4");
  refused(npy("<u2", "(3,)", "").substr(0, 60), "is truncated");
  refused(npy("<u2", "(3", ""), "a number is missing");
  refused(npy("<u2", "(-3,)", ""), "number is missing");
  refused(npy("<u", "(3,)", ""), "no size");
  for (const char* type : {"<u3", "<u16", "<i0", "<i12"})
    refused(npy(type, "(3,)", ""), "does not exist", type);
  refused(npy("<u2", "(3,)", "", "Maybe"), "neither True nor False");
  refused(npy("<u2", "(4294967296, 4294967296, 4294967296)", ""), "larger than any file");
  refused(npy("<u8", "(9223372036854775807,)", ""), "larger than any file");
  EXPECT_EQ(parse_npy_header(npy("|u1", "()", "x"), "a").data_bytes(), 1U);
  EXPECT_EQ(parse_npy_header(npy("<U3", "(2,)", ""), "a").data_bytes(), 24U);
}

TEST_F(FormatTables, AnArrayWithoutRowsHasNoSamples) {
  write("a.npy", npy("<u2", "(0, 2)", ""));
  EXPECT_NO_THROW(check(folder_ / "a.npy"));
  EXPECT_THAT([&] { open(folder_ / "a.npy"); }, ThrowsErrorWith("a.npy", "no samples"));
}

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

TEST_F(FormatTables, AZeroByteInAnIndexJsonIsRefused) {
  const fs::path mds = vector("mds/tokens");
  const std::string whole = staging_test::read(mds / "index.json");
  write("mds/tokens/index.json", whole + std::string(1, '\0') + "left over");
  EXPECT_THAT([&] { open(mds); },
              ThrowsErrorWith("index.json", "zero byte at offset " + std::to_string(whole.size())));
}

// 2^63 and above would become negative.
TEST_F(FormatTables, TokensThatDoNotFitIntoASignedNumberAreRefusedWithTheirValue) {
  const std::string tokens = bytes_of(std::uint64_t{7}) + bytes_of(std::uint64_t{1} << 63);
  std::vector<std::int64_t> into(2);
  EXPECT_THAT([&] { widen(TokenType::u64, std::as_bytes(std::span(tokens)), into); },
              ThrowsErrorWith("token 1 is 9223372036854775808", "9223372036854775807"));
  write("n/a.npy", npy("<u8", "(1, 2)", tokens));
  ConvertOptions options;
  options.source = folder_ / "n/a.npy";
  options.out = folder_ / "out";
  EXPECT_THAT([&] { convert(options); },
              ThrowsErrorWith("a.npy", "token 1 is 9223372036854775808, but tokens"));
}

}  // namespace
}  // namespace lockstep::pack
