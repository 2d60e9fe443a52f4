// Where a node takes what others ask it for: a copy that is being made, or an object that is complete.
//
// Threads: safe from any.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "staging/transfer/copy/copy.h"

namespace lockstep::transfer {

class Shelf {
 public:
  virtual ~Shelf() = default;

  /// The list of files; nothing where this node cannot give it.
  virtual std::shared_ptr<const std::string> list() = 0;
  virtual std::size_t chunks() const = 0;
  virtual std::uint32_t bytes(std::size_t chunk) const = 0;
  virtual bool has(std::size_t chunk) = 0;
  /// Of a chunk that is not there: the node that will have it instead. Without one it will be here.
  virtual std::optional<std::uint32_t> moved(std::size_t chunk) = 0;
  /// Reads a chunk that is there. False where it cannot be read.
  virtual bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) = 0;
  /// Chunks that the asker will read from now on.
  virtual std::vector<std::size_t> cede(std::uint32_t node) = 0;
};

/// Gives only the list.
class ListShelf : public Shelf {
 public:
  explicit ListShelf(std::shared_ptr<const std::string> list) : list_(std::move(list)) {}
  std::shared_ptr<const std::string> list() override { return list_; }
  std::size_t chunks() const override { return 0; }
  std::uint32_t bytes(std::size_t) const override { return 0; }
  bool has(std::size_t) override { return false; }
  std::optional<std::uint32_t> moved(std::size_t) override { return {}; }
  bool read(std::size_t, std::span<std::byte>, pack::Digest&) override { return false; }
  std::vector<std::size_t> cede(std::uint32_t) override { return {}; }

 private:
  std::shared_ptr<const std::string> list_;
};

/// A copy that is being made.
class CopyShelf : public Shelf {
 public:
  /// `copy` and `work` outlive it; `members` are the nodes' ids, as the queues of `work`.
  CopyShelf(Copy& copy, ChunkWork& work, std::vector<std::uint32_t> members,
            std::shared_ptr<const std::string> list)
      : copy_(copy), work_(work), members_(std::move(members)), list_(std::move(list)) {}
  std::shared_ptr<const std::string> list() override { return list_; }
  std::size_t chunks() const override { return copy_.plan().size(); }
  std::uint32_t bytes(std::size_t chunk) const override { return copy_.plan().bytes(chunk); }
  bool has(std::size_t chunk) override { return copy_.store().has(chunk); }
  std::optional<std::uint32_t> moved(std::size_t chunk) override;
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override;
  std::vector<std::size_t> cede(std::uint32_t node) override;

 private:
  Copy& copy_;
  ChunkWork& work_;
  std::vector<std::uint32_t> members_;
  std::shared_ptr<const std::string> list_;
};

/// An object of the cache.
class ObjectShelf : public Shelf {
 public:
  ObjectShelf(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
              std::uint32_t chunk_bytes, std::shared_ptr<const std::string> list);
  std::shared_ptr<const std::string> list() override { return list_; }
  std::size_t chunks() const override { return plan_.size(); }
  std::uint32_t bytes(std::size_t chunk) const override { return plan_.bytes(chunk); }
  bool has(std::size_t) override { return true; }
  std::optional<std::uint32_t> moved(std::size_t) override { return {}; }
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override;
  std::vector<std::size_t> cede(std::uint32_t) override { return {}; }

 private:
  ChunkPlan plan_;
  LocalFiles files_;
  std::shared_ptr<const std::string> list_;
};

}  // namespace lockstep::transfer
