#include "staging/pack/formats/recordio_keys.h"

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "staging/pack/digest.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {

std::optional<RecordioKeys> RecordioKeys::beside(const std::filesystem::path& data) {
  std::filesystem::path index = data;
  index.replace_extension(".idx");
  std::error_code error;
  if (!std::filesystem::is_regular_file(index, error)) return {};
  return parse(read_text_file(index), index);
}

RecordioKeys RecordioKeys::parse(std::string_view text, const std::filesystem::path& name) {
  RecordioKeys keys;
  keys.file_ = name;
  keys.state_ = to_hex(digest_of(std::as_bytes(std::span(text))));
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    const std::size_t tab = std::min(line.find('\t'), line.size());
    const std::string_view key = line.substr(0, tab);
    const std::string_view digits = tab == line.size() ? std::string_view() : line.substr(tab + 1);
    const std::optional<std::uint64_t> offset = to_number<std::uint64_t>(digits);
    if (!offset)
      fail("{}, line {}: not a key, a tab and an offset: make it again with rec2idx, or remove it",
           name.string(), number);
    if (const std::string_view reason = unsafe_member_name(key); !reason.empty())
      fail("{}, line {}: the key {}", name.string(), number, reason);
    if (!keys.keys_.emplace(*offset, key).second)
      fail("{}, line {}: a second key for the record at offset {}", name.string(), number, *offset);
  }
  return keys;
}

std::string_view RecordioKeys::at(std::uint64_t offset) const {
  const auto found = keys_.find(offset);
  if (found == keys_.end())
    fail("{} has no line for the record at offset {}: make it again with rec2idx, or remove it",
         file_.string(), offset);
  return found->second;
}

}  // namespace lockstep::pack
