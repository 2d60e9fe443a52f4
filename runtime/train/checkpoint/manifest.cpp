#include "runtime/train/checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace lockstep::checkpoint {
namespace {

constexpr const char* kKind = "lockstep checkpoint";
constexpr std::string_view kPrefix = "step-";

std::string hex_of(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

nlohmann::json to_json(const std::vector<FileEntry>& files) {
  auto list = nlohmann::json::array();
  for (const FileEntry& file : files) {
    list.push_back({{"name", file.name},
                    {"item", file.item},
                    {"rank", file.rank},
                    {"bytes", file.bytes},
                    {"xxh3_128", file.digest}});
    if (!file.ranks.empty()) list.back()["ranks"] = file.ranks;
  }
  return list;
}

std::vector<FileEntry> files_from_json(const nlohmann::json& list) {
  std::vector<FileEntry> files;
  for (const auto& file : list)
    files.push_back({file.at("name"), file.at("item"), file.at("rank"), file.at("bytes"), file.at("xxh3_128"),
                     file.value("ranks", std::vector<int>())});
  return files;
}

}  // namespace

void Digest::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

Digest::Digest() : state_(XXH3_createState()) {
  XXH3_128bits_reset(state_.get());
}

void Digest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string Digest::text() const {
  return hex_of(XXH3_128bits_digest(state_.get()));
}

std::string digest_of(std::span<const std::byte> bytes) {
  return hex_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

std::string to_text(const Manifest& manifest) {
  nlohmann::json json{{"kind", kKind},
                      {"format", kFormat},
                      {"step", manifest.step},
                      {"ranks", manifest.ranks},
                      {"training", manifest.training},
                      {"files", to_json(manifest.files)}};
  json["checksum"] = digest_of(json.dump());
  return json.dump(1) + "\n";
}

Manifest manifest_from_text(std::string_view text) {
  try {
    auto json = nlohmann::json::parse(text);
    if (!json.is_object() || json.value("kind", "") != kKind)
      throw Damaged("its manifest.json is not one of Lockstep's");
    if (const int format = json.at("format"); format != kFormat)
      fail(
          "it has format version {}, but this program reads version {}; use the version of Lockstep that wrote it",
          format, kFormat);
    const std::string checksum = json.at("checksum");
    json.erase("checksum");
    if (checksum != digest_of(json.dump()))
      throw Damaged("its manifest.json was modified: the checksum differs");
    return {.step = json.at("step"),
            .ranks = json.at("ranks"),
            .training = json.at("training"),
            .files = files_from_json(json.at("files"))};
  } catch (const nlohmann::json::exception&) {
    throw Damaged("its manifest.json is damaged");
  }
}

std::string to_text(const RankReport& report) {
  return nlohmann::json{{"error", report.error}, {"files", to_json(report.files)}}.dump();
}

RankReport report_from_text(std::string_view text) {
  const auto json = nlohmann::json::parse(text);
  return {.error = json.at("error"), .files = files_from_json(json.at("files"))};
}

std::string folder_name(std::int64_t step) {
  return fmt::format("{}{:06}", kPrefix, step);
}

std::int64_t step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return -1;
  const std::string digits(name.substr(kPrefix.size()));
  const bool valid =
      digits.size() >= 6 && digits.size() <= 18 &&
      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); });
  return valid ? std::stoll(digits) : -1;
}

}  // namespace lockstep::checkpoint
