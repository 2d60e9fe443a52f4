#include "runtime/comm/alike.h"

#include <algorithm>
#include <cstdint>

#include "common/error.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kMaxValueShown = 200;

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// A line is "what\tvalue"; a missing one is "\tmissing".
std::string line_or_missing(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? lines[i] : "\tmissing";
}

}  // namespace

void check_alike(Communicator& communicator, std::string_view subject,
                 const std::vector<Property>& properties, std::string_view label, std::string_view remedy) {
  std::string mine;
  for (const auto& property : properties) mine += property.what + '\t' + property.value + '\n';
  const auto my_lines = split_lines(mine);
  const auto first_lines = split_lines(broadcast_text(communicator, mine, 0, label));

  const std::size_t longest = std::max(my_lines.size(), first_lines.size());
  std::int64_t differs_at = -1;
  for (std::size_t i = 0; i < longest && differs_at < 0; ++i) {
    if (line_or_missing(my_lines, i) != line_or_missing(first_lines, i))
      differs_at = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> everyone(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&differs_at, 1, DataType::i64}, everyone.data(), label)->wait();

  const auto other = std::find_if(everyone.begin(), everyone.end(), [](std::int64_t at) { return at >= 0; });
  if (other == everyone.end()) return;
  const int rank = static_cast<int>(other - everyone.begin());
  const auto at = static_cast<std::size_t>(*other);
  const std::string first = line_or_missing(first_lines, at);
  const std::string theirs = broadcast_text(communicator, line_or_missing(my_lines, at), rank, label);
  const auto tab = [](const std::string& line) { return line.find('\t'); };
  const auto value = [&](const std::string& line) { return line.substr(tab(line) + 1, kMaxValueShown); };
  fail_usage("{} differ: {} is {} on rank 0 and {} on rank {}; {}", subject,
             tab(first) > 0 ? first.substr(0, tab(first)) : theirs.substr(0, tab(theirs)), value(first),
             value(theirs), rank, remedy);
}

std::string broadcast_text(Communicator& communicator, std::string text, int root, std::string_view label) {
  auto bytes = static_cast<std::int64_t>(text.size());
  communicator.broadcast({&bytes, 1, DataType::i64}, root, label)->wait();
  text.resize(static_cast<std::size_t>(bytes));
  communicator.broadcast({text.data(), text.size(), DataType::u8}, root, label)->wait();
  return text;
}

}  // namespace lockstep::comm
