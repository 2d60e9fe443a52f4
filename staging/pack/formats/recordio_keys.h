// The .idx beside a RecordIO file: each line has a key, a tab and the offset of its record.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::pack {

class RecordioKeys {
 public:
  /// Reads the .idx of a .rec file; nullopt if there is none. Throws Error naming a line that is not valid.
  static std::optional<RecordioKeys> beside(const std::filesystem::path& data);

  static RecordioKeys parse(std::string_view text, const std::filesystem::path& name);

  /// The key of the record that begins at `offset`. Throws Error if there is none.
  std::string_view at(std::uint64_t offset) const;

  std::size_t size() const { return keys_.size(); }

  /// A digest of the file.
  const std::string& state() const { return state_; }

 private:
  std::filesystem::path file_;
  std::map<std::uint64_t, std::string> keys_;
  std::string state_;
};

}  // namespace lockstep::pack
