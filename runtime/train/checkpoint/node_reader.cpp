#include "runtime/train/checkpoint/node_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <exception>
#include <future>
#include <vector>

#include "common/error.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/checkpoint/digest.h"
#include "runtime/train/checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

// Large enough for the file system; the communicator keeps as much shared memory for later operations.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

}  // namespace

void NodeReader::read(const std::filesystem::path& folder, const FileEntry& file, bool needed,
                      FileBuffer& into) {
  std::int32_t wanted = needed ? 1 : 0;
  ranks_.all_reduce({&wanted, 1, comm::DataType::i32}, "files to read", {.op = comm::ReduceOp::max})->wait();
  if (wanted == 0) return;
  const std::filesystem::path path = folder / file.name;
  const bool reads = ranks_.rank() == 0;
  UniqueFd fd;
  Digest digest;
  std::exception_ptr failure;
  std::vector<std::byte> passing(needed ? 0 : std::min<std::uint64_t>(kPieceBytes, file.bytes));
  if (needed) into.resize(file.bytes);
  for (std::uint64_t at = 0; at < file.bytes; at += kPieceBytes) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, file.bytes - at));
    const std::span<std::byte> piece =
        needed ? into.bytes().subspan(at, size) : std::span(passing).first(size);
    std::future<void> done;
    if (reads && !failure) {
      done = std::async(std::launch::async, [&, at, piece] {
        if (at == 0) {
          progress_.begin("reading " + path.string(), file.bytes);
          fd = system_.open(path, O_RDONLY | O_NOFOLLOW);
        }
        read_bytes(system_, fd.get(), piece, at, path, progress_);
        digest.add(piece);
      });
    }
    wait_for_files(ranks_, progress_, [&](std::chrono::milliseconds pause) {
      return !done.valid() || done.wait_for(pause) == std::future_status::ready;
    });
    try {
      if (done.valid()) done.get();
    } catch (...) {
      failure = std::current_exception();  // the other ranks wait for all pieces
    }
    ranks_.broadcast({piece.data(), piece.size(), comm::DataType::u8}, 0, "a piece of a checkpoint")->wait();
  }
  const auto failed = comm::run_on_all_ranks(ranks_, "reading the checkpoint", [&] {
    if (failure) std::rethrow_exception(failure);
    if (reads && digest.text() != file.digest)
      fail("{} changed while it was being loaded: its digest differs from the manifest's", path.string());
  });
  if (failed) fail("{}", failed->reason);
}

}  // namespace lockstep::checkpoint
