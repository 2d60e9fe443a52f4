// HDF5 datasets that array packages do not write, but that libhdf5 allows.

#include <unistd.h>

#include <array>

#include "staging/pack/formats/hdf5_library.h"
#include "staging/pack/formats/rows_reader.h"
#include "staging/pack/reader.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

using staging_test::ThrowsErrorWith;

class FormatHdf5 : public staging_test::StagingTest {
 protected:
  /// A new file x.h5 with a dataset /x without data.
  std::filesystem::path make(const Hdf5Space& space, hid_t type, hsize_t chunk = 0) const {
    const std::filesystem::path path = folder_ / "x.h5";
    const Hdf5Lock lock;
    const Hdf5File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    const Hdf5Properties created(H5Pcreate(H5P_DATASET_CREATE));
    if (chunk != 0) H5Pset_chunk(created.get(), 1, &chunk);
    const Hdf5Dataset dataset(
        H5Dcreate2(file.get(), "x", type, space.get(), H5P_DEFAULT, created.get(), H5P_DEFAULT));
    EXPECT_TRUE(dataset);
    return path;
  }
  static Hdf5Space rows(hsize_t count) {
    const Hdf5Lock lock;
    return Hdf5Space(H5Screate_simple(1, &count, nullptr));
  }
};

TEST_F(FormatHdf5, IntegersThatDoNotFillTheirBytesAreRefused) {
  const Hdf5Lock lock;
  const Hdf5Type narrow(H5Tcopy(H5T_STD_U16LE));
  H5Tset_precision(narrow.get(), 12);
  const Hdf5Type shifted(H5Tcopy(narrow.get()));
  H5Tset_offset(shifted.get(), 4);
  const Hdf5Type lists(H5Tvlen_create(shifted.get()));
  EXPECT_THAT([&] { open(make(rows(3), narrow.get())); },
              ThrowsErrorWith("x.h5:/x", "12 of 16 bits, from bit 0"));
  EXPECT_THAT([&] { open(make(rows(3), shifted.get())); },
              ThrowsErrorWith("x.h5:/x", "12 of 16 bits, from bit 4"));
  EXPECT_THAT([&] { open(make(rows(3), lists.get())); }, ThrowsErrorWith("x.h5:/x", "12 of 16 bits"));
  EXPECT_EQ(open(make(rows(3), H5T_STD_U16LE, 3))->token_type(), TokenType::u16);
}

/// A compound with one field of `type`.
Hdf5Type compound_of(hid_t type) {
  Hdf5Type compound(H5Tcreate(H5T_COMPOUND, H5Tget_size(type)));
  H5Tinsert(compound.get(), "x", 0, type);
  return compound;
}

TEST_F(FormatHdf5, BigEndianNumbersAreRefusedByNameAlsoInsideOtherTypes) {
  const Hdf5Lock lock;
  const hsize_t three = 3;
  const int one = 1;
  for (const hid_t big : {H5T_STD_I32BE, H5T_IEEE_F64BE, H5T_STD_B16BE}) {
    const Hdf5Type array(H5Tarray_create2(big, 1, &three));
    const Hdf5Type compound = compound_of(big);
    const Hdf5Type deep = compound_of(Hdf5Type(H5Tarray_create2(compound.get(), 1, &three)).get());
    const Hdf5Type lists(H5Tvlen_create(array.get()));
    const Hdf5Type deep_lists(H5Tvlen_create(deep.get()));
    const Hdf5Type arrays(H5Tarray_create2(array.get(), 1, &three));
    for (const hid_t type :
         {big, array.get(), compound.get(), deep.get(), lists.get(), deep_lists.get(), arrays.get()})
      EXPECT_THAT([&] { open(make(rows(3), type)); }, ThrowsErrorWith("x.h5:/x", "big-endian"));
    EXPECT_THAT([&] { open(make(rows(3), deep.get())); }, ThrowsErrorWith("field 'x', field 'x'"));
  }
  const Hdf5Type numbers(H5Tenum_create(H5T_STD_I16BE));
  H5Tenum_insert(numbers.get(), "one", &one);
  const Hdf5Type deep_numbers(
      H5Tvlen_create(compound_of(Hdf5Type(H5Tarray_create2(numbers.get(), 1, &three)).get()).get()));
  const Hdf5Type number_lists(H5Tvlen_create(numbers.get()));
  for (const hid_t type : {numbers.get(), number_lists.get(), deep_numbers.get()})
    EXPECT_THAT([&] { open(make(rows(3), type)); }, ThrowsErrorWith("x.h5:/x", "big-endian"));
  const Hdf5Type little = compound_of(Hdf5Type(H5Tarray_create2(H5T_STD_I32LE, 1, &three)).get());
  EXPECT_EQ(open(make(rows(3), little.get(), 3))->bytes(0), 36U);
  EXPECT_EQ(open(make(rows(3), compound_of(H5T_STD_U8BE).get(), 3))->bytes(0), 3U) << "a byte has no order";
}

TEST_F(FormatHdf5, ValuesThatReferToOthersAreRefusedByNameAlsoInsideOtherTypes) {
  const Hdf5Lock lock;
  const hsize_t three = 3;
  const Hdf5Type text(H5Tcopy(H5T_C_S1));
  H5Tset_size(text.get(), H5T_VARIABLE);
  const Hdf5Type list(H5Tvlen_create(H5T_STD_I32LE));
  const auto array_of = [&](const Hdf5Type& type) {
    return Hdf5Type(H5Tarray_create2(type.get(), 1, &three));
  };
  const auto list_of = [](const Hdf5Type& type) { return Hdf5Type(H5Tvlen_create(type.get())); };
  EXPECT_THAT([&] { open(make(rows(3), H5T_STD_REF_OBJ)); },
              ThrowsErrorWith("x.h5:/x", "refer to other places"));
  for (const Hdf5Type& inner : {Hdf5Type(H5Tcopy(text.get())), Hdf5Type(H5Tcopy(list.get())),
                                Hdf5Type(H5Tcopy(H5T_STD_REF_OBJ)), Hdf5Type(H5Tcopy(H5T_STD_REF_DSETREG))}) {
    const Hdf5Type compound = compound_of(inner.get());
    const Hdf5Type array = array_of(inner);
    for (const Hdf5Type& outer :
         {list_of(inner), compound_of(inner.get()), array_of(inner), list_of(compound), list_of(array),
          array_of(compound), compound_of(array.get()), list_of(array_of(compound)),
          compound_of(list_of(compound).get())})
      EXPECT_THAT([&] { open(make(rows(3), outer.get())); },
                  ThrowsErrorWith("x.h5:/x", "refer to other places"));
  }
  EXPECT_THAT([&] { open(make(rows(3), compound_of(compound_of(text.get()).get()).get())); },
              ThrowsErrorWith("field 'x', field 'x': its values refer to other places"));
  const Hdf5Type pairs = list_of(compound_of(array_of(Hdf5Type(H5Tcopy(H5T_STD_I16LE))).get()));
  for (const hid_t good : {text.get(), list.get(), pairs.get()})
    EXPECT_EQ(open(make(rows(3), good))->size(), 3U);
}

/// Calls `work` while libhdf5 has a filter with this number, which changes nothing.
void with_filter(H5Z_filter_t number, const std::function<void()>& work) {
  const H5Z_class2_t filter{.version = H5Z_CLASS_T_VERS,
                            .id = number,
                            .encoder_present = 1,
                            .decoder_present = 1,
                            .name = "of a test",
                            .can_apply = nullptr,
                            .set_local = nullptr,
                            // An optional filter may leave out a chunk: here one that begins with 0.
                            .filter = [](unsigned flags, std::size_t, const unsigned*, std::size_t bytes,
                                         std::size_t*, void** chunk) {
                              const bool left_out = (flags & H5Z_FLAG_REVERSE) == 0 &&
                                                    *static_cast<const std::int32_t*>(*chunk) == 0;
                              return left_out ? 0 : bytes;
                            }};
  H5Zregister(&filter);
  work();
  H5Zunregister(number);
}

TEST_F(FormatHdf5, AFilterThatIsNotInstalledIsNamedWhenTheDataAreOpened) {
  const Hdf5Lock lock;
  const auto filtered = [&](H5Z_filter_t number, unsigned flag, std::int32_t first = 1) {
    const std::filesystem::path path = folder_ / "x.h5";
    with_filter(number, [&] {
      const Hdf5File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
      const Hdf5Properties created(H5Pcreate(H5P_DATASET_CREATE));
      const hsize_t chunk = 3;
      H5Pset_chunk(created.get(), 1, &chunk);
      H5Pset_filter(created.get(), number, flag, 0, nullptr);
      const Hdf5Dataset dataset(
          H5Dcreate2(file.get(), "x", H5T_STD_I32LE, rows(6).get(), H5P_DEFAULT, created.get(), H5P_DEFAULT));
      const std::array<std::int32_t, 6> numbers = {first, 2, 3, 4, 5, 6};
      EXPECT_GE(H5Dwrite(dataset.get(), H5T_STD_I32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()), 0);
    });
    return path;
  };
  for (const unsigned flag : {H5Z_FLAG_MANDATORY, H5Z_FLAG_OPTIONAL}) {
    EXPECT_THAT([&] { open(filtered(32001, flag)); },
                ThrowsErrorWith("x.h5:/x", "filter 32001 (blosc)", "not installed", "HDF5_PLUGIN_PATH"));
    EXPECT_THAT([&] { open(filtered(31999, flag)); }, ThrowsErrorWith("filter 31999 (of a test)"));
  }
  EXPECT_THAT([&] { open(filtered(32000, H5Z_FLAG_OPTIONAL, 0))->verify(); },
              ThrowsErrorWith("x.h5:/x, sample 0", "filter 32000 (lzf)", "not installed"));
  const auto path = filtered(32001, H5Z_FLAG_OPTIONAL);
  with_filter(32001, [&] { open(path)->verify(); });
}

TEST_F(FormatHdf5, AFileThatAKilledWriterLeftOpenIsNamedWithTheCure) {
  const std::filesystem::path path = folder_ / "x.h5";
  EXPECT_EQ(staging_test::in_child([&] {
              const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
              H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
              const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
              const hid_t dataset =
                  H5Dcreate2(file, "x", H5T_STD_I32LE, rows(3).get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
              const std::array<std::int32_t, 3> numbers = {1, 2, 3};
              H5Dwrite(dataset, H5T_STD_I32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data());
              H5Fflush(file, H5F_SCOPE_GLOBAL);
              ::_exit(9);
            }),
            9);
  EXPECT_THAT([&] { open(path); }, ThrowsErrorWith("x.h5", "h5clear -s " + path.string()));
}

TEST_F(FormatHdf5, AShapeTooLargeForTheFileIsRefusedBeforeMemoryIsAllocated) {
  const Hdf5Lock lock;
  const hsize_t huge[2] = {hsize_t{1} << 60, 2};
  const hsize_t two_rows[2] = {2, hsize_t{1} << 40};
  const hsize_t chunks[2] = {1, 2};
  const std::filesystem::path path = folder_ / "x.h5";
  for (const hsize_t* shape : {huge, two_rows}) {
    {
      const Hdf5File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
      const Hdf5Properties created(H5Pcreate(H5P_DATASET_CREATE));
      H5Pset_chunk(created.get(), 2, chunks);
      const Hdf5Space space(H5Screate_simple(2, shape, nullptr));
      const Hdf5Dataset dataset(
          H5Dcreate2(file.get(), "x", H5T_STD_I64LE, space.get(), H5P_DEFAULT, created.get(), H5P_DEFAULT));
      ASSERT_TRUE(dataset);
    }
    EXPECT_THAT([&] { open(path); }, ThrowsErrorWith("x.h5:/x", "never written"));
  }
  const Hdf5Type lists(H5Tvlen_create(H5T_STD_I32LE));
  EXPECT_THAT([&] { open(make(rows(hsize_t{1} << 40), lists.get(), 1024)); },
              ThrowsErrorWith("x.h5:/x", "never written"));
  EXPECT_EQ(open(make(rows(1000), H5T_STD_I32LE, 10))->bytes(0), 4000U) << "a few zeros are data";
}

TEST_F(FormatHdf5, SamplesAreTheRowsAlongTheFirstAxis) {
  EXPECT_EQ(rows_of({5}, 4, "a").row_bytes, 20U) << "an array with one axis is one sample";
  EXPECT_EQ(rows_of({5}, 4, "a").rows, 1U);
  EXPECT_EQ(rows_of({3, 2, 2}, 1, "a").rows, 3U);
  EXPECT_EQ(rows_of({3, 2, 2}, 1, "a").row_bytes, 4U);
  for (const std::vector<std::uint64_t>& shape : {std::vector<std::uint64_t>{0, 2}, {3, 0}, {0}})
    EXPECT_THAT([&] { rows_of(shape, 8, "a"); }, ThrowsErrorWith("a holds no samples"));
  EXPECT_THAT(
      [&] {
        rows_of({2, 1ULL << 32U, 1ULL << 32U}, 8, "a");
      },
      ThrowsErrorWith("larger than any file"));
  EXPECT_EQ(tokens_of(TokenType::u16, 1), TokenType::u16);
  EXPECT_EQ(tokens_of(TokenType::u16, 2), TokenType::u16);
  EXPECT_EQ(tokens_of(TokenType::u16, 3), TokenType::none) << "pictures";
  EXPECT_EQ(tokens_of(TokenType::f32, 1), TokenType::none);
  write("f", std::string(17, 'x'));
  EXPECT_THAT([&] { RowsReader(folder_, "f", 10, {.rows = 3, .row_bytes = 4}, TokenType::none); },
              ThrowsErrorWith("truncated to 17 bytes", "the first lost sample is 1 at offset 14"));
}

TEST_F(FormatHdf5, ADatasetWithoutAShapeHasNoSamples) {
  const Hdf5Lock lock;
  EXPECT_THAT([&] { open(make(Hdf5Space(H5Screate(H5S_NULL)), H5T_STD_I32LE)); },
              ThrowsErrorWith("x.h5:/x", "null dataspace", "no samples"));
  EXPECT_EQ(open(make(Hdf5Space(H5Screate(H5S_SCALAR)), H5T_STD_I32LE))->bytes(0), 4U);
}

}  // namespace
}  // namespace lockstep::pack
