// Reads the rows of an HDF5 dataset.

#include <fmt/ranges.h>

#include <algorithm>

#include "common/error.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/hdf5_file.h"
#include "staging/pack/formats/hdf5_library.h"
#include "staging/pack/formats/rows_reader.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkCache = std::size_t{64} << 20;
constexpr hsize_t kAtATime = 1024;

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// An open dataset and its shape.
struct OpenDataset {
  Hdf5File file;
  Hdf5Dataset dataset;
  Hdf5Type type;
  Hdf5Space space;
  std::string path;  ///< in the file
  std::vector<std::uint64_t> shape;
};

/// Called for a link to another file; -1 stops libhdf5 from following it.
herr_t refuse_other_files(const char* /*from*/, const char* /*group*/, const char* /*to*/,
                          const char* /*object*/, unsigned* /*flags*/, hid_t /*access*/, void* /*data*/) {
  return -1;
}

herr_t collect_datasets(hid_t group, const char* name, const H5L_info_t* info, void* data) {
  if (info->type != H5L_TYPE_HARD) return 0;
  const Hdf5Object object(H5Oopen(group, name, H5P_DEFAULT));
  // An object that cannot be opened is listed too, so that opening it reports the error.
  if (!object || H5Iget_type(object.get()) == H5I_DATASET)
    static_cast<std::vector<std::string>*>(data)->push_back(std::string("/") + name);
  return 0;
}

bool is_external(hid_t file, const std::string& path) {
  H5L_info_t info{};
  return H5Lget_info(file, path.c_str(), &info, H5P_DEFAULT) >= 0 && info.type == H5L_TYPE_EXTERNAL;
}

std::string only_dataset(hid_t file, const fs::path& path) {
  std::vector<std::string> names;
  H5Lvisit(file, H5_INDEX_NAME, H5_ITER_INC, collect_datasets, &names);
  if (names.empty()) fail("{} holds no dataset", path.string());
  if (names.size() > 1)
    fail("{} holds {} datasets ({}): name one, such as {}:{}", path.string(), names.size(),
         fmt::join(names, ", "), path.string(), names.front());
  return names.front();
}

std::vector<std::uint64_t> shape_of(hid_t space) {
  const int axes = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> lengths(static_cast<std::size_t>(std::max(axes, 0)));
  if (axes > 0) H5Sget_simple_extent_dims(space, lengths.data(), nullptr);
  return {lengths.begin(), lengths.end()};
}

/// Refuses a dataset whose shape is too large for its file: a small file can claim any shape if its data were
/// never written. No compression makes data a million times smaller.
void refuse_unwritten(const OpenDataset& opened, const fs::path& path) {
  constexpr std::uint64_t kMaxPacked = std::uint64_t{1} << 20;
  const std::uint64_t file_bytes = fs::file_size(path);
  std::uint64_t bytes = H5Tget_size(opened.type.get());
  bool too_large = false;
  if (std::find(opened.shape.begin(), opened.shape.end(), 0) != opened.shape.end()) return;
  for (const std::uint64_t length : opened.shape)
    too_large = __builtin_mul_overflow(bytes, length, &bytes) || too_large;
  if (too_large || bytes / kMaxPacked > file_bytes)
    fail(
        "{}:{}: its shape ({}) needs far more data than a file of {} bytes can hold: most were never written",
        path.string(), opened.path, fmt::join(opened.shape, ", "), file_bytes);
}

/// libhdf5's innermost error of the last call.
std::string last_error() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* error, void* data) -> herr_t {
        if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(data) = error->desc;
        return 0;
      },
      &text);
  return text.empty() ? "h5dump may tell why" : text;
}

std::string_view name_of_filter(H5Z_filter_t filter) {
  switch (filter) {
    case H5Z_FILTER_DEFLATE:
      return "gzip";
    case H5Z_FILTER_SZIP:
      return "szip";
    case 307:
      return "bzip2";
    case 32000:
      return "lzf";
    case 32001:
      return "blosc";
    case 32004:
      return "lz4";
    case 32008:
      return "bitshuffle";
    case 32013:
      return "zfp";
    case 32015:
      return "zstd";
    case 32026:
      return "blosc2";
    default:
      return "unknown";
  }
}

/// An optional filter may have been left out when the data were written; the first chunk tells.
bool left_out_at_writing(hid_t dataset, unsigned filter) {
  hsize_t chunks = 0;
  unsigned mask = 0;
  const Hdf5Space space(H5Dget_space(dataset));
  if (H5Dget_num_chunks(dataset, space.get(), &chunks) < 0 || chunks == 0) return true;
  return H5Dget_chunk_info(dataset, space.get(), 0, nullptr, &mask, nullptr, nullptr) >= 0 &&
         (mask >> filter & 1U) != 0;
}

/// Refuses data that libhdf5 could not decode, or that it could not: only some chunks may need an optional filter.
void refuse_missing_filters(hid_t dataset, const std::string& name, bool could_not = false) {
  const Hdf5Properties properties(H5Dget_create_plist(dataset));
  const hid_t created = properties.get();
  const int filters = H5Pget_nfilters(created);
  for (int n = 0; n < filters; ++n) {
    unsigned flags = 0;
    std::size_t values = 0;
    char text[64] = "";
    const auto number = static_cast<unsigned>(n);
    const H5Z_filter_t filter =
        H5Pget_filter2(created, number, &flags, &values, nullptr, sizeof(text), text, nullptr);
    if (filter < 0 || H5Zfilter_avail(filter) > 0) continue;
    if (!could_not && (flags & H5Z_FLAG_OPTIONAL) != 0 && left_out_at_writing(dataset, number)) continue;
    const std::string_view known = name_of_filter(filter);
    fail(
        "{}: it is compressed with HDF5's filter {} ({}), which is not installed: install its plugin and set HDF5_PLUGIN_PATH, or write the data with gzip where it is installed (h5repack -f GZIP=4)",
        name, filter, known == "unknown" && text[0] != '\0' ? std::string_view(text) : known);
  }
}

OpenDataset open_dataset(const fs::path& path, const std::string& dataset) {
  const Hdf5Properties access(H5Pcreate(H5P_LINK_ACCESS));
  H5Pset_elink_cb(access.get(), refuse_other_files, nullptr);
  const Hdf5Properties cached(H5Pcreate(H5P_DATASET_ACCESS));
  H5Pset_elink_cb(cached.get(), refuse_other_files, nullptr);
  H5Pset_chunk_cache(cached.get(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT, kChunkCache, H5D_CHUNK_CACHE_W0_DEFAULT);
  OpenDataset opened;
  const Hdf5Properties unlocked(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_file_locking(unlocked.get(), 0, 1);  // network file systems may have no locks
  opened.file = Hdf5File(H5Fopen(path.c_str(), H5F_ACC_RDONLY, unlocked.get()));
  if (!opened.file) fail("{}: libhdf5 cannot open it: {}", path.string(), last_error());
  opened.path = dataset.empty() ? only_dataset(opened.file.get(), path) : dataset;
  opened.dataset = Hdf5Dataset(H5Dopen2(opened.file.get(), opened.path.c_str(), cached.get()));
  if (!opened.dataset && H5Lexists(opened.file.get(), opened.path.c_str(), H5P_DEFAULT) > 0 &&
      !is_external(opened.file.get(), opened.path))
    fail("{}: {} cannot open {}: it is not a dataset, is damaged, or was written by a newer version",
         path.string(), H5_VERS_INFO, opened.path);
  if (!opened.dataset) fail("{} has no dataset {}", path.string(), opened.path);
  const Hdf5Properties created(H5Dget_create_plist(opened.dataset.get()));
  if (H5Pget_layout(created.get()) == H5D_VIRTUAL || H5Pget_external_count(created.get()) > 0)
    fail("{}:{}: its data are in other files: copy them into this file (h5repack)", path.string(),
         opened.path);
  refuse_missing_filters(opened.dataset.get(), fmt::format("{}:{}", path.string(), opened.path));
  opened.type = Hdf5Type(H5Dget_type(opened.dataset.get()));
  opened.space = Hdf5Space(H5Dget_space(opened.dataset.get()));
  if (!opened.type || !opened.space) fail("{}:{}: libhdf5 cannot read it", path.string(), opened.path);
  if (H5Sget_simple_extent_type(opened.space.get()) == H5S_NULL)
    fail("{}:{}: it has no shape (a null dataspace) and holds no samples", path.string(), opened.path);
  opened.shape = shape_of(opened.space.get());
  refuse_unwritten(opened, path);
  return opened;
}

/// Refuses integers that do not fill their bytes: they are shifted or padded in the file, and this library
/// reads the bytes unchanged.
void refuse_bits(hid_t type, const std::string& name) {
  const std::size_t bits = 8 * H5Tget_size(type);
  if (H5Tget_precision(type) != bits || H5Tget_offset(type) != 0)
    fail("{}: its integers use {} of {} bits, from bit {} on: write integers that use all bits", name,
         H5Tget_precision(type), bits, H5Tget_offset(type));
}

/// Refuses what this library cannot give out as the bytes that libhdf5 returns, also in compounds, arrays, enumerations and
/// lists: numbers whose bytes are not those of this machine, and addresses of other values. The dataset's own values may
/// have variable length, those `inside` them must not.
void refuse_unreadable(hid_t type, const std::string& name, bool inside = false) {
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_REFERENCE || (inside && (kind == H5T_VLEN || H5Tis_variable_str(type) > 0)))
    fail(
        "{}: its values refer to other places in the file (references, or lists and texts of variable length inside others), which is not supported: write them as a dataset of their own",
        name);
  switch (kind) {
    case H5T_INTEGER:
    case H5T_FLOAT:
    case H5T_BITFIELD:
    case H5T_TIME:
      if (H5Tget_size(type) > 1 && H5Tget_order(type) != H5T_ORDER_LE)
        fail("{}: its numbers are big-endian: write them little-endian", name);
      if (kind == H5T_INTEGER) refuse_bits(type, name);
      return;
    case H5T_ENUM:
    case H5T_ARRAY:
    case H5T_VLEN:
      return refuse_unreadable(Hdf5Type(H5Tget_super(type)).get(), name, true);
    case H5T_COMPOUND:
      for (int n = 0; n < H5Tget_nmembers(type); ++n) {
        const auto number = static_cast<unsigned>(n);
        char* member = H5Tget_member_name(type, number);
        const std::string inner = fmt::format("{}, field '{}'", name, member == nullptr ? "" : member);
        H5free_memory(member);
        refuse_unreadable(Hdf5Type(H5Tget_member_type(type, number)).get(), inner, true);
      }
      return;
    default:
      return;
  }
}

TokenType number_type(hid_t type) {
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  switch (H5Tget_size(type)) {
    case 1:
      return is_signed ? TokenType::i8 : TokenType::u8;
    case 2:
      return is_signed ? TokenType::i16 : TokenType::u16;
    case 4:
      return is_signed ? TokenType::i32 : TokenType::u32;
    case 8:
      return is_signed ? TokenType::i64 : TokenType::u64;
    default:
      return TokenType::none;
  }
}

/// Selects `count` rows of a dataset from row `begin` on.
Hdf5Space select_rows(const OpenDataset& opened, hsize_t begin, hsize_t count) {
  Hdf5Space space(H5Scopy(opened.space.get()));
  if (opened.shape.size() < 1) return space;
  std::vector<hsize_t> start(opened.shape.size(), 0);
  std::vector<hsize_t> lengths(opened.shape.begin(), opened.shape.end());
  start[0] = begin;
  lengths[0] = count;
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, lengths.data(), nullptr);
  return space;
}

/// Reads rows through libhdf5: compressed rows, rows in chunks, or rows of variable length.
class Hdf5Reader : public ExtentReader {
 public:
  Hdf5Reader(const fs::path& folder, const std::string& file_name, OpenDataset opened, Rows rows,
             TokenType type)
      : ExtentReader(folder, file_name, rows.rows, type),
        opened_(std::move(opened)),
        row_bytes_(rows.row_bytes),
        one_row_(opened_.shape.empty() || opened_.shape[0] != rows.rows) {}

  /// For rows of variable length.
  Hdf5Reader(const fs::path& folder, const std::string& file_name, OpenDataset opened,
             std::vector<std::uint64_t> lengths, TokenType type)
      : ExtentReader(folder, file_name, lengths.size(), type),
        opened_(std::move(opened)),
        lengths_(std::move(lengths)) {}

  bool can_view() const override { return false; }
  std::span<const std::byte> view(std::size_t i) const override {
    fail("{}: the dataset is compressed or in chunks: use read()", where(number(i)));
  }

  void read(std::size_t i, std::span<std::byte> into) const override;

  void verify(const ReadProgress& progress) const override {
    std::vector<std::byte> payload;
    for (std::size_t i = 0; i < size(); ++i) {
      payload.resize(extent(i).bytes);
      read(i, payload);
      progress(payload.size());
    }
  }

 protected:
  Extent extent(std::size_t i) const override { return {0, lengths_.empty() ? row_bytes_ : lengths_[i]}; }

 private:
  std::string where(std::size_t i) const {
    return fmt::format("{}:{}, sample {}", file().path().string(), opened_.path, i);
  }

  OpenDataset opened_;
  std::uint64_t row_bytes_ = 0;
  bool one_row_ = false;
  std::vector<std::uint64_t> lengths_;
};

/// Values of variable length in libhdf5's memory, which the destructor frees.
class VariableRows {
 public:
  VariableRows(const OpenDataset& opened, hsize_t begin, hsize_t count)
      : opened_(opened),
        is_text_(H5Tis_variable_str(opened.type.get()) > 0),
        memory_(H5Screate_simple(1, &count, nullptr)) {
    const Hdf5Space rows = select_rows(opened, begin, count);
    if (is_text_) {
      texts_.resize(count);
      good_ = H5Dread(opened.dataset.get(), opened.type.get(), memory_.get(), rows.get(), H5P_DEFAULT,
                      texts_.data()) >= 0;
    } else {
      lists_.resize(count);
      good_ = H5Dread(opened.dataset.get(), opened.type.get(), memory_.get(), rows.get(), H5P_DEFAULT,
                      lists_.data()) >= 0;
      const Hdf5Type item(H5Tget_super(opened.type.get()));
      item_bytes_ = H5Tget_size(item.get());
    }
  }
  VariableRows(const VariableRows&) = delete;
  VariableRows& operator=(const VariableRows&) = delete;
  ~VariableRows() {
    if (good_)
      H5Dvlen_reclaim(opened_.type.get(), memory_.get(), H5P_DEFAULT,
                      is_text_ ? static_cast<void*>(texts_.data()) : lists_.data());
  }

  bool good() const { return good_; }
  std::span<const std::byte> value(std::size_t n) const {
    if (!is_text_) return {static_cast<const std::byte*>(lists_[n].p), lists_[n].len * item_bytes_};
    if (texts_[n] == nullptr) return {};
    return std::as_bytes(std::span(texts_[n], std::char_traits<char>::length(texts_[n])));
  }

 private:
  const OpenDataset& opened_;
  bool is_text_;
  Hdf5Space memory_;
  std::vector<char*> texts_;
  std::vector<hvl_t> lists_;
  std::size_t item_bytes_ = 0;
  bool good_ = false;
};

void Hdf5Reader::read(std::size_t i, std::span<std::byte> into) const {
  const Extent at = extent(number(i));
  if (into.size() != at.bytes)
    fail("{}: the buffer has {} bytes, the sample has {}", where(i), into.size(), at.bytes);
  const Hdf5Lock lock;
  if (lengths_.empty()) {
    const Hdf5Space rows = one_row_ ? Hdf5Space(H5Scopy(opened_.space.get())) : select_rows(opened_, i, 1);
    const auto count = static_cast<hsize_t>(H5Sget_select_npoints(rows.get()));
    const Hdf5Space memory(H5Screate_simple(1, &count, nullptr));
    if (H5Dread(opened_.dataset.get(), opened_.type.get(), memory.get(), rows.get(), H5P_DEFAULT,
                into.data()) < 0) {
      refuse_missing_filters(opened_.dataset.get(), where(i), true);
      fail("{}: libhdf5 cannot read it: the file is damaged", where(i));
    }
    return;
  }
  const VariableRows values(opened_, i, 1);
  if (!values.good()) fail("{}: libhdf5 cannot read it: the file is damaged", where(i));
  const auto value = values.value(0);
  if (value.size() != into.size())
    fail("{}: {} bytes, but {} when the file was opened", where(i), value.size(), into.size());
  std::copy(value.begin(), value.end(), into.begin());
}

std::vector<std::uint64_t> variable_lengths(const OpenDataset& opened, const std::string& name) {
  if (opened.shape.size() != 1)
    fail("{}: values of variable length along {} axes are not supported, only along one", name,
         opened.shape.size());
  std::vector<std::uint64_t> lengths;
  lengths.reserve(opened.shape[0]);
  for (hsize_t begin = 0; begin < opened.shape[0]; begin += kAtATime) {
    const hsize_t count = std::min<hsize_t>(kAtATime, opened.shape[0] - begin);
    const VariableRows values(opened, begin, count);
    if (!values.good()) {
      refuse_missing_filters(opened.dataset.get(), name, true);
      fail("{}, samples {} to {}: libhdf5 cannot read them: the file is damaged", name, begin,
           begin + count - 1);
    }
    for (std::size_t n = 0; n < count; ++n) lengths.push_back(values.value(n).size());
  }
  if (lengths.empty()) throw NoSamples(fmt::format("{} holds no samples", name));
  return lengths;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(library_mutex()) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::unique_ptr<Reader> open_hdf5(const fs::path& folder, const std::string& file,
                                  const std::string& dataset) {
  const fs::path path = folder / file;
  refuse_open_hdf5(path);
  check_hdf5(path);
  const Hdf5Lock lock;
  OpenDataset opened = open_dataset(path, dataset);
  const std::string name = fmt::format("{}:{}", path.string(), opened.path);
  refuse_unreadable(opened.type.get(), name);
  const H5T_class_t kind = H5Tget_class(opened.type.get());
  if (kind == H5T_VLEN || H5Tis_variable_str(opened.type.get()) > 0) {
    std::vector<std::uint64_t> lengths = variable_lengths(opened, name);
    TokenType type = TokenType::none;
    if (kind == H5T_VLEN) {
      const Hdf5Type item(H5Tget_super(opened.type.get()));
      // Lists of bytes are images, not tokens.
      if (H5Tget_class(item.get()) == H5T_INTEGER && H5Tget_size(item.get()) > 1)
        type = number_type(item.get());
    }
    return std::make_unique<Hdf5Reader>(folder, file, std::move(opened), std::move(lengths), type);
  }
  TokenType type = TokenType::none;
  std::uint64_t item_bytes = H5Tget_size(opened.type.get());
  std::vector<std::uint64_t> shape = opened.shape;
  if (kind == H5T_INTEGER) {
    type = tokens_of(number_type(opened.type.get()), shape.size());
  } else if (kind == H5T_STRING || kind == H5T_OPAQUE) {
    shape.push_back(std::exchange(item_bytes, 1));  // each text is a sample
  }
  const Rows rows = rows_of(shape, item_bytes, name);
  const haddr_t offset = H5Dget_offset(opened.dataset.get());
  if (offset != HADDR_UNDEF) return std::make_unique<RowsReader>(folder, file, offset, rows, type);
  return std::make_unique<Hdf5Reader>(folder, file, std::move(opened), rows, type);
}

}  // namespace lockstep::pack
