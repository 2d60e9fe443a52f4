#include "examples/text_lm/checkpoint.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/error.h"
#include "common/files.h"

namespace lockstep::text_lm {
namespace {

constexpr std::int64_t kNoFile = -1;

// Sends rank 0's file to all ranks: on a shared file system other nodes may not see a new file at once.
bool read_on_all_ranks(const std::filesystem::path& file, World& world, std::string& content) {
  std::int64_t bytes = kNoFile;
  if (world.rank() == 0 && std::filesystem::exists(file)) {
    content = read_text_file(file);
    bytes = static_cast<std::int64_t>(content.size());
  }
  auto& ranks = world.communicator();
  ranks.broadcast({&bytes, 1, comm::DataType::i64}, 0, "checkpoint's size")->wait();
  if (bytes == kNoFile) return false;
  content.resize(static_cast<std::size_t>(bytes));
  ranks.broadcast({content.data(), content.size(), comm::DataType::u8}, 0, "checkpoint")->wait();
  return true;
}

// Compared with the file's, because LibTorch would load parameters of any shape.
std::string describe(const ModelOptions& model) {
  return fmt::format("vocabulary {}, width {}, layers {}, heads {}", model.vocabulary, model.width,
                     model.layers, model.heads);
}

std::string read_string(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toStringRef();
}

torch::Tensor tensor_of(const std::vector<std::uint8_t>& bytes) {
  return torch::tensor(at::ArrayRef<std::uint8_t>(bytes), torch::kUInt8);
}

}  // namespace

void SamplesSeen::add(const torch::Tensor& sample_ids) {
  const auto* const ids = sample_ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sample_ids.size(0); ++i) {
    std::uint8_t& count = mine_.at(static_cast<std::size_t>(ids[i]));
    count = static_cast<std::uint8_t>(std::min(count + 1, 255));
  }
}

std::vector<std::uint8_t> SamplesSeen::on_all_ranks(World& world) const {
  std::vector<std::int32_t> sum(mine_.begin(), mine_.end());
  world.communicator().all_reduce({sum.data(), sum.size(), comm::DataType::i32}, "samples seen")->wait();
  std::vector<std::uint8_t> counts;
  for (const std::int32_t count : sum) counts.push_back(static_cast<std::uint8_t>(std::min(count, 255)));
  return counts;
}

void SamplesSeen::resume(const std::vector<std::uint8_t>& counts, const World& world) {
  if (world.rank() == 0) mine_ = counts;
}

Checkpoint::Checkpoint(std::filesystem::path file, LanguageModel model, torch::optim::Optimizer& optimizer,
                       World& world)
    : file_(std::move(file)), model_(std::move(model)), optimizer_(optimizer), world_(world) {
}

bool Checkpoint::read(Contents& contents) {
  std::string content;
  if (file_.empty() || !read_on_all_ranks(file_, world_, content)) return false;
  try {
    std::istringstream stream(std::move(content));
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    const std::string options = read_string(archive, "options");
    if (const std::string ours = describe(model_->options()); options != ours) {
      fail("cannot resume from {}: its model has {}, but this one has {}", file_.string(), options, ours);
    }
    torch::serialize::InputArchive model;
    archive.read("model", model);
    model_->load(model);
    torch::serialize::InputArchive optimizer;
    archive.read("optimizer", optimizer);
    optimizer_.load(optimizer);
    contents.loader = read_string(archive, "loader");
    torch::Tensor numbers;
    archive.read("progress", numbers);
    const auto* const number = numbers.data_ptr<double>();
    contents.progress = {static_cast<std::int64_t>(number[0]), number[1], number[2]};
    torch::Tensor seen;
    archive.read("seen", seen);
    contents.seen.assign(seen.data_ptr<std::uint8_t>(), seen.data_ptr<std::uint8_t>() + seen.numel());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    fail(
        "cannot resume from {}: {}; name another --checkpoint, or remove the file to start from the "
        "beginning",
        file_.string(), text.substr(0, text.find('\n')));
  }
  return true;
}

void Checkpoint::write(const Contents& contents) {
  if (file_.empty() || world_.rank() != 0) return;
  torch::serialize::OutputArchive archive;
  archive.write("options", c10::IValue(describe(model_->options())));
  torch::serialize::OutputArchive model;
  model_->save(model);
  archive.write("model", model);
  torch::serialize::OutputArchive optimizer;
  optimizer_.save(optimizer);
  archive.write("optimizer", optimizer);
  archive.write("loader", c10::IValue(contents.loader));
  const Progress::State& progress = contents.progress;
  archive.write("progress",
                torch::tensor({static_cast<double>(progress.steps), progress.tokens, progress.seconds},
                              torch::kFloat64));
  archive.write("seen", tensor_of(contents.seen));
  std::ostringstream stream;
  archive.save_to(stream);
  write_file_atomically(file_, stream.str());
}

}  // namespace lockstep::text_lm
