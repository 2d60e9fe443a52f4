#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "exporters/report/report.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFirstLine = 4096;
constexpr std::size_t kBlock = 1 << 20;
constexpr std::string_view kEnd = "\n]}\n";

bool is_trace(const fs::path& path) {
  const std::string name = path.stem().string();
  return path.extension() == ".json" && name.starts_with("trace-") && is_number(name.substr(6));
}

// Those of one folder in the order of ranks.
std::vector<fs::path> traces_in(const std::vector<fs::path>& folders) {
  std::vector<fs::path> traces;
  for (const fs::path& folder : folders) {
    std::error_code error;
    const std::size_t before = traces.size();
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      if (is_trace(entry->path())) traces.push_back(entry->path());
    }
    if (error) fail("cannot read the folder {}: {}", folder.string(), error.message());
    std::sort(traces.begin() + static_cast<std::ptrdiff_t>(before), traces.end());
  }
  if (traces.empty()) {
    fail("there are no traces (trace-*.json) in {}: give the folder that the profile was written to",
         folders.front().string());
  }
  return traces;
}

class Trace {
 public:
  explicit Trace(const fs::path& path) : path_(path), fd_(open_file(path, O_RDONLY)) {
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) fail_errno("cannot read {}", path.string());
    const auto size = static_cast<std::uint64_t>(status.st_size);
    first_line_ = std::string(kMaxFirstLine, '\0');
    first_line_.resize(read(0, first_line_));
    first_line_.resize(std::min(first_line_.size(), first_line_.find('\n')));
    begin_ = first_line_.size() + 1;
    if (size <= begin_ + kEnd.size()) not_a_trace();
    end_ = size - kEnd.size();
    std::string last_line(kEnd.size(), '\0');
    read(end_, last_line);
    if (last_line != kEnd) not_a_trace();
  }

  /// Names the run.
  const std::string& first_line() const { return first_line_; }

  JoinedTrace run() const {
    try {
      const auto run = nlohmann::json::parse(first_line_ + "]}").at("otherData");
      return {.run = printable(run.at("run").get<std::string>()), .ranks_of_run = run.at("ranks")};
    } catch (const nlohmann::json::exception&) {
      not_a_trace();
    }
  }

  void write_events(int out, const fs::path& out_path) const {
    std::string block(std::min<std::uint64_t>(kBlock, end_ - begin_), '\0');
    for (std::uint64_t at = begin_; at < end_; at += block.size()) {
      block.resize(std::min<std::uint64_t>(block.size(), end_ - at));
      if (read(at, block) < block.size()) not_a_trace();  // it became shorter
      write_all(out, block, out_path);
    }
  }

 private:
  [[noreturn]] void not_a_trace() const {
    fail("{} is not a whole trace of lockstep: remove it", path_.string());
  }

  // Returns the number of bytes, which is less than asked for at the end of the file.
  std::size_t read(std::uint64_t offset, std::string& into) const {
    const ssize_t got = read_at(fd_.get(), std::as_writable_bytes(std::span(into)), offset);
    if (got < 0) fail_errno("cannot read {}", path_.string());
    return static_cast<std::size_t>(got);
  }

  fs::path path_;
  UniqueFd fd_;
  std::string first_line_;
  std::uint64_t begin_ = 0;  // of the events
  std::uint64_t end_ = 0;
};

}  // namespace

JoinedTrace join_traces(const std::vector<fs::path>& folders, const fs::path& out) {
  const std::vector<fs::path> traces = traces_in(folders);
  const Trace latest(*std::max_element(traces.begin(), traces.end(), [](const auto& a, const auto& b) {
    return fs::last_write_time(a) < fs::last_write_time(b);
  }));
  JoinedTrace joined = latest.run();
  write_output(out, [&](int fd) {
    write_all(fd, latest.first_line(), out);
    for (const fs::path& path : traces) {
      const Trace trace(path);
      if (trace.first_line() != latest.first_line()) continue;
      write_all(fd, joined.ranks == 0 ? "\n" : ",\n", out);
      trace.write_events(fd, out);
      ++joined.ranks;
    }
    write_all(fd, kEnd, out);
  });
  return joined;
}

}  // namespace lockstep::report
