// The .idx beside a RecordIO file: lines of a key, a tab and the offset of its record.
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
  /// Of the .rec file, where there is an .idx. Throws Error naming the line that is none.
  static std::optional<RecordioKeys> beside(const std::filesystem::path& data);

  static RecordioKeys parse(std::string_view text, const std::filesystem::path& name);

  /// The key of the record that begins there. Throws Error where there is none.
  std::string_view at(std::uint64_t offset) const;

  std::size_t size() const { return keys_.size(); }

  /// Something that differs when the file does.
  const std::string& state() const { return state_; }

 private:
  std::filesystem::path file_;
  std::map<std::uint64_t, std::string> keys_;
  std::string state_;
};

}  // namespace lockstep::pack
