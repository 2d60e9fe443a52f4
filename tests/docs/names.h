// The names that the documents' C++ blocks leave to the reader: a model, a loader, a batch, and so on. Nothing here is
// defined; the blocks are only compiled.
#pragma once

#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/data/loader.h"
#include "runtime/data/loader_options.h"
#include "runtime/data/plan/planner.h"
#include "runtime/lockstep.h"
#include "runtime/profile/step_timer.h"
#include "staging/pack/reader.h"

namespace names {

struct Options {};
extern int argc;
extern char** argv;
extern Options options;
extern lockstep::World& world;

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(Options options = {});
  torch::Tensor forward(const torch::Tensor& inputs, const torch::Tensor& cu_seqlens = {});
};
TORCH_MODULE(Model);
extern Model model;
extern lockstep::DistributedDataParallel<ModelImpl>& ddp;
extern torch::optim::AdamW& optimizer;
extern lockstep::LearningRate& learning_rate;
extern lockstep::Checkpointer& checkpointer;
torch::Tensor net(const torch::Tensor& images);
extern torch::nn::Sequential layers;
extern std::vector<torch::nn::Sequential> blocks;

// README passes the reader, other pages its pointer.
struct Pack {
  operator const lockstep::pack::Reader&() const;
  const lockstep::pack::Reader& operator*() const;
};
extern Pack pack, pages;
extern std::string folder;
extern lockstep::data::PlanOptions plan;
extern lockstep::data::Loader &loader, &held_out;
extern lockstep::data::Batch batch;
extern std::uint64_t epochs;
extern std::int64_t step, steps_per_epoch, tokens;
extern std::vector<std::vector<std::vector<std::uint16_t>>> documents;

// Batches of another loader, such as torch::data.
struct DataSet : torch::data::datasets::Dataset<DataSet> {
  torch::data::Example<> get(std::size_t index) override;
  torch::optional<std::size_t> size() const override;
};
extern DataSet data_set;
using DataLoader = torch::data::StatelessDataLoader<
    torch::data::datasets::MapDataset<DataSet, torch::data::transforms::Stack<>>,
    torch::data::samplers::DistributedRandomSampler>;
extern std::unique_ptr<DataLoader> data_loader;

extern torch::Tensor x, loss, images, labels;
torch::Tensor loss_sum(const torch::Tensor& logits, const lockstep::data::Batch& batch);
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& labels);
torch::Tensor loss_of(ModelImpl& model, const lockstep::data::Batch& batch);
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels);
lockstep::data::Batch batch_of(const lockstep::data::MicroBatchShape& shape);
lockstep::data::Batch batch_of_tokens(std::uint64_t tokens);
extern int hits;
void take_part_without_samples();
void prepare_next_batch();
void report(double value);
void print(double value);
double validate();

// batches.md plans without the loader.
extern const lockstep::data::LengthSource& source;
// loader.md's pictures.
void crop(lockstep::data::ImageSample& sample);

}  // namespace names
