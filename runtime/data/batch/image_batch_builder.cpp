#include "runtime/data/batch/image_batch_builder.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/error.h"
#include "common/leaf/text.h"
#include "runtime/data/plan/order/order.h"

namespace lockstep::data {
namespace {

constexpr int kLookAtImages = 64;

constexpr std::size_t kEnough = 4096;  // samples
constexpr double kSorted = 0.5;        // the way from chance to certainty

constexpr std::size_t kBlock = EpochOrder::kShardSamples * EpochOrder::kBlockShards;

std::int64_t number_in(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  const auto number = to_number<std::int64_t>(text);
  if (!number) fail("the label '{}' is not a whole number", text.substr(0, 40));
  return *number;
}

// The memory is [count, (depth,) height, width, channels]; the tensor has the order of dimensions that networks expect.
torch::Tensor pixel_tensor(const std::shared_ptr<BatchBuffer>& buffer, std::size_t offset, std::int64_t count,
                           const PixelFormat& format) {
  const auto size = [](std::size_t value) { return static_cast<std::int64_t>(value); };
  std::vector<std::int64_t> shape = {count};
  if (format.size.depth > 0) shape.push_back(size(format.size.depth));
  shape.insert(shape.end(), {size(format.size.height), size(format.size.width), size(format.channels)});
  const auto type = format.type == PixelType::uint8 ? torch::kUInt8 : torch::kInt16;
  return tensor_on(buffer, offset, shape, type).movedim(-1, 1);
}

PixelFormat format_of(const ImageOptions& images) {
  return {.size = images.size,
          .raw = images.raw == ImageSize{} ? images.size : images.raw,
          .channels = images.channels,
          .type = images.type,
          .max_pixels = images.max_pixels,
          .decode_at_least = images.decode_at_least};
}

PixelFormat format_of_target(const ImageOptions& images) {
  const TargetOptions& target = *images.target;
  PixelFormat format{.size = target.size == ImageSize{} ? images.size : target.size, .raw = target.raw};
  if (format.raw == ImageSize{}) format.raw = format.size;
  format.channels = target.channels;
  format.type = target.type;
  format.numbers = true;
  format.max_pixels = images.max_pixels;
  return format;
}

// Of labels. One rank tells it for all.
bool has_order_to_look_at(const BuildOptions& options) {
  return options.rank == 0 && !options.loader.images->label.empty() && options.plan.order == Order::shuffled;
}

void check_format(const PixelFormat& format, const char* what) {
  if (format.bytes() > 0) return;
  fail_usage("the {}' height, width and channels must be above 0, not {} with {} channels", what,
             text_of(format.size), format.channels);
}

}  // namespace

LabelOrder::LabelOrder(std::size_t samples) : samples_(samples), looking_(samples > kBlock) {
}

std::optional<std::string> LabelOrder::add(std::span<const std::int64_t> samples,
                                           std::span<const std::int64_t> labels) {
  if (!looking_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (!looking_) return std::nullopt;
  for (std::size_t i = 0; i < samples.size(); ++i) seen_.emplace_back(samples[i], labels[i]);
  if (seen_.size() < kEnough) return std::nullopt;
  looking_ = false;
  auto seen = std::exchange(seen_, {});
  std::sort(seen.begin(), seen.end());

  std::unordered_map<std::int64_t, double> counts;
  for (const auto& [sample, label] : seen) ++counts[label];
  double chance = 0;  // that two samples have the same label
  for (const auto& [label, count] : counts) {
    const double share = count / static_cast<double>(seen.size());
    chance += share * share;
  }
  double pairs = 0;
  double equal = 0;
  for (std::size_t i = 1; i < seen.size(); ++i) {
    if (seen[i].first - seen[i - 1].first > static_cast<std::int64_t>(EpochOrder::kShardSamples)) continue;
    ++pairs;
    equal += seen[i].second == seen[i - 1].second ? 1 : 0;
  }
  if (pairs < kEnough / 4.0 || equal / pairs < chance + kSorted * (1 - chance)) return std::nullopt;
  return fmt::format(
      "the data is sorted by label: of neighbours in the pack {:.0f} % have the same label, of any two samples {:.0f} %. The loader shuffles {} of the {} samples at a time, so its steps see few of the labels: shuffle the data once when you pack it (find … | shuf | lockstep-pack create -)",
      100 * equal / pairs, 100 * chance, kBlock, samples_);
}

ImageBatchBuilder::ImageBatchBuilder(const pack::Reader& reader, const BuildOptions& options)
    : HostBatchBuilder(reader, options, buffer_bytes(options.plan, *options.loader.images)),
      images_(*options_.loader.images),
      format_(format_of(images_)),
      buffers_of_workers_(static_cast<std::size_t>(options_.workers)),
      label_order_(has_order_to_look_at(options_) ? reader.size() : 0) {
  check_format(format_, "images");
  if (!images_.target) return;
  target_ = format_of_target(images_);
  check_format(*target_, "targets");
}

std::size_t ImageBatchBuilder::buffer_bytes(const PlanOptions& plan, const ImageOptions& images) {
  BufferLayout layout;
  layout.add(plan.cap * format_of(images).bytes());
  if (images.target) layout.add(plan.cap * format_of_target(images).bytes());
  layout.add(plan.cap * sizeof(std::int64_t));
  layout.add(plan.cap * sizeof(std::int64_t));
  return std::max<std::size_t>(layout.used(), 1);
}

// Reads the first part for which `wanted` is true.
template <typename Wanted>
const pack::Part& ImageBatchBuilder::read_part(std::size_t number, const std::vector<pack::Part>& parts,
                                               const std::string& what, const Wanted& wanted,
                                               std::vector<std::byte>& into) const {
  const auto part = std::find_if(parts.begin(), parts.end(), wanted);
  if (part == parts.end()) fail("there is no part {}", what);
  into.resize(part->bytes);
  reader_.read_part(number, static_cast<std::size_t>(part - parts.begin()), into);
  return *part;
}

std::int64_t ImageBatchBuilder::label_of(std::size_t number, const std::vector<pack::Part>& parts,
                                         WorkerBuffers& buffers) const {
  const std::string& kind = images_.label;
  read_part(
      number, parts, "'" + kind + "' with a label", [&](const pack::Part& part) { return part.kind == kind; },
      buffers.label);
  const std::string_view text(reinterpret_cast<const char*>(buffers.label.data()), buffers.label.size());
  if (kind != "json") return number_in(text);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto found = json.is_object() ? json.find(images_.label_key) : json.end();
  if (!json.is_object() || found == json.end() || !found->is_number_integer()) {
    fail("the part 'json' must be an object with a whole number \"{}\"", images_.label_key);
  }
  return found->get<std::int64_t>();
}

// Says once that decoding at a part of the size would leave twice the batch's size, if that holds for most images.
void ImageBatchBuilder::look_at_size(ImageSize decoded, std::string_view kind,
                                     std::span<const std::byte> packed) {
  if (options_.rank != 0 || !images_.transform || images_.decode_at_least != ImageSize{} ||
      looked_at_.load(std::memory_order_relaxed) >= kLookAtImages) {
    return;
  }
  const ImageSize twice{.height = 2 * images_.size.height, .width = 2 * images_.size.width};
  if (decodes_smaller(kind, packed, format_, twice)) ++too_large_;
  if (++looked_at_ != kLookAtImages || too_large_ < kLookAtImages * 3 / 4) return;
  fmt::print(
      stderr,
      "lockstep: the workers decode images of {} x {} pixels for batches of {} x {}: set ImageOptions::decode_at_least = {{{}, {}}} if the transform needs no more, or make the images smaller once (examples/recipes/resize_images.py)\n",
      decoded.height, decoded.width, images_.size.height, images_.size.width, twice.height, twice.width);
}

// Says once that an image must be turned to be upright.
void ImageBatchBuilder::look_at_orientation(std::size_t number, std::string_view kind,
                                            std::span<const std::byte> packed) {
  if (options_.rank != 0 || turned_.load(std::memory_order_relaxed)) return;
  const int orientation = stored_orientation(kind, packed, format_);
  if (orientation == 1 || turned_.exchange(true)) return;
  fmt::print(
      stderr,
      "lockstep: sample '{}' (number {}) has the EXIF orientation {}: the loader decodes images as they are stored and does not turn them; to train on upright images, turn them once (examples/recipes/resize_images.py --orientation apply)\n",
      reader_.key(number), number, orientation);
}

ImageBatchBuilder::Decoded ImageBatchBuilder::decode_sample(std::size_t number, WorkerBuffers& buffers,
                                                            const Places& places) {
  const std::vector<pack::Part> parts = reader_.parts(number);
  const auto is_target = [&](const pack::Part& part) {
    return images_.target && part.kind == images_.target->part;
  };
  // The image is the first part that is neither label nor target: parts are sorted by name, and "cls" comes before "png".
  const pack::Part& image = read_part(
      number, parts, "with an image",
      [&](const pack::Part& part) {
        return !is_target(part) && (images_.label.empty() || part.kind != images_.label);
      },
      buffers.packed);
  Decoded decoded{.pixels = {}, .target = {}, .bytes = buffers.packed.size()};
  if (places.label != nullptr) {
    *places.label = label_of(number, parts, buffers);
    decoded.bytes += buffers.label.size();
  }

  const bool transformed = images_.transform != nullptr;
  decoded.pixels =
      pixels_of_part(image.kind, buffers.packed, format_, transformed, places.image, buffers.pixels);
  if (target_) {
    const pack::Part& part = read_part(number, parts, "'" + images_.target->part + "' with a dense target",
                                       is_target, buffers.packed_target);
    decoded.bytes += buffers.packed_target.size();
    decoded.target = pixels_of_part(part.kind, buffers.packed_target, *target_, transformed, places.target,
                                    buffers.target);
  }
  look_at_size(decoded.pixels.size, image.kind, buffers.packed);
  look_at_orientation(number, image.kind, buffers.packed);
  return decoded;
}

// Returns the number of bytes read.
std::size_t ImageBatchBuilder::take_sample(SampleId id, std::uint64_t epoch, int worker,
                                           const Places& places) {
  const std::size_t number = sample_of(id);
  const Decoded decoded = reading_sample(
      [&] { return decode_sample(number, buffers_of_workers_[static_cast<std::size_t>(worker)], places); });
  if (!images_.transform) return decoded.bytes;
  ImageSample sample{
      .pixels = decoded.pixels.pixels, .size = decoded.pixels.size, .channels = images_.channels};
  describe(sample, id, epoch, worker);
  sample.out = places.image;
  sample.target = decoded.target.pixels;
  sample.target_size = decoded.target.size;
  sample.target_out = places.target;
  sample.label = places.label;
  images_.transform(sample);
  return decoded.bytes;
}

HostBatch ImageBatchBuilder::build(const MicroBatch& micro_batch, int worker) {
  HostBatch host = begin_batch(micro_batch);
  if (!micro_batch.block) return host;
  const auto samples = micro_batch.samples(options_.rank);
  const auto count = static_cast<std::int64_t>(samples.size());
  Batch& batch = host.batch;
  BufferLayout layout;
  const std::size_t pixels = layout.add(samples.size() * format_.bytes());
  const std::size_t targets = target_ ? layout.add(samples.size() * target_->bytes()) : 0;
  const std::size_t labels = layout.add(samples.size() * sizeof(std::int64_t));
  const std::size_t ids = layout.add(samples.size() * sizeof(std::int64_t));
  batch.images = pixel_tensor(host.buffer, pixels, count, format_);
  if (target_) batch.targets = pixel_tensor(host.buffer, targets, count, *target_);
  if (!images_.label.empty()) batch.labels = tensor_on(host.buffer, labels, {count}, torch::kInt64);
  batch.sample_ids = tensor_on(host.buffer, ids, {count}, torch::kInt64);
  host.used = layout.used();

  const auto place = [&](std::size_t offset, std::size_t bytes) {
    return std::span(reinterpret_cast<std::uint8_t*>(host.buffer->data() + offset), bytes);
  };
  auto* const label = reinterpret_cast<std::int64_t*>(host.buffer->data() + labels);
  auto* const id_out = reinterpret_cast<std::int64_t*>(host.buffer->data() + ids);
  std::size_t kept = 0;
  for (const SampleId id : samples) {
    id_out[kept] = static_cast<std::int64_t>(id);
    Places places{.image = place(pixels + kept * format_.bytes(), format_.bytes())};
    if (target_) places.target = place(targets + kept * target_->bytes(), target_->bytes());
    if (!images_.label.empty()) places.label = label + kept;
    const auto take = [&] { host.bytes_read += take_sample(id, micro_batch.epoch, worker, places); };
    if (use_sample(id, batch, take)) ++kept;
  }
  if (batch.skipped > 0) {
    for (torch::Tensor* tensor : {&batch.images, &batch.targets, &batch.labels, &batch.sample_ids}) {
      if (tensor->defined()) *tensor = tensor->narrow(0, 0, static_cast<std::int64_t>(kept));
    }
  }
  if (const auto found = label_order_.add({id_out, kept}, {label, kept}))
    fmt::print(stderr, "lockstep: {}\n", *found);
  batch.empty = kept == 0;
  batch.max_length = batch.empty ? 0 : 1;
  batch.token_count = batch.loss_tokens = static_cast<std::int64_t>(kept);
  return host;
}

}  // namespace lockstep::data
