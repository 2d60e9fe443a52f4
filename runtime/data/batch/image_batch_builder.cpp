#include "runtime/data/batch/image_batch_builder.h"

#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "runtime/data/name_sample.h"
#include "runtime/data/sample_seeds.h"

namespace lockstep::data {
namespace {

constexpr int kLookAtImages = 64;

std::int64_t number_in(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail("the label '{}' is not a whole number", text.substr(0, 40));
  }
  return number;
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
bool has_order_to_look_at(const ImageBuildOptions& options) {
  return options.rank == 0 && !options.images.label.empty() && options.plan.order == Order::shuffled;
}

void check_format(const PixelFormat& format, const char* what) {
  if (format.bytes() > 0) return;
  fail_usage("the {}' height, width and channels must be above 0, not {} with {} channels", what,
             text_of(format.size), format.channels);
}

}  // namespace

ImageBatchBuilder::ImageBatchBuilder(const pack::Reader& reader, ImageBuildOptions options)
    : reader_(reader),
      options_(std::move(options)),
      format_(format_of(options_.images)),
      buffers_(
          std::make_shared<BatchBuffers>(buffer_bytes(options_.plan, options_.images), options_.page_locked)),
      buffers_of_workers_(static_cast<std::size_t>(options_.workers)),
      label_order_(has_order_to_look_at(options_) ? reader.size() : 0),
      skipped_(options_.skip_damaged) {
  check_format(format_, "images");
  if (!options_.images.target) return;
  target_ = format_of_target(options_.images);
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
  const std::string& kind = options_.images.label;
  read_part(
      number, parts, "'" + kind + "' with a label", [&](const pack::Part& part) { return part.kind == kind; },
      buffers.label);
  const std::string_view text(reinterpret_cast<const char*>(buffers.label.data()), buffers.label.size());
  if (kind != "json") return number_in(text);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto found = json.is_object() ? json.find(options_.images.label_key) : json.end();
  if (!json.is_object() || found == json.end() || !found->is_number_integer()) {
    fail("the part 'json' must be an object with a whole number \"{}\"", options_.images.label_key);
  }
  return found->get<std::int64_t>();
}

// Says once that decoding at a part of the size would leave twice the batch's size, if that holds for most images.
void ImageBatchBuilder::look_at_size(ImageSize decoded, std::string_view kind,
                                     std::span<const std::byte> packed) {
  const ImageOptions& images = options_.images;
  if (options_.rank != 0 || !images.transform || images.decode_at_least != ImageSize{} ||
      looked_at_.load(std::memory_order_relaxed) >= kLookAtImages) {
    return;
  }
  const ImageSize twice{.height = 2 * images.size.height, .width = 2 * images.size.width};
  if (decodes_smaller(kind, packed, format_, twice)) ++too_large_;
  if (++looked_at_ != kLookAtImages || too_large_ < kLookAtImages * 3 / 4) return;
  fmt::print(
      stderr,
      "lockstep: the workers decode images of {} x {} pixels for batches of {} x {}: set ImageOptions::decode_at_least = {{{}, {}}} if the transform needs no more, or make the images smaller once (examples/recipes/resize_images.py)\n",
      decoded.height, decoded.width, images.size.height, images.size.width, twice.height, twice.width);
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
  const ImageOptions& images = options_.images;
  const std::vector<pack::Part> parts = reader_.parts(number);
  const auto is_target = [&](const pack::Part& part) {
    return images.target && part.kind == images.target->part;
  };
  // The image is the first part that is neither label nor target: parts are sorted by name, and "cls" comes before "png".
  const pack::Part& image = read_part(
      number, parts, "with an image",
      [&](const pack::Part& part) {
        return !is_target(part) && (images.label.empty() || part.kind != images.label);
      },
      buffers.packed);
  Decoded decoded{.pixels = {}, .target = {}, .bytes = buffers.packed.size()};
  if (places.label != nullptr) {
    *places.label = label_of(number, parts, buffers);
    decoded.bytes += buffers.label.size();
  }

  const bool transformed = images.transform != nullptr;
  decoded.pixels =
      pixels_of_part(image.kind, buffers.packed, format_, transformed, places.image, buffers.pixels);
  if (target_) {
    const pack::Part& part = read_part(number, parts, "'" + images.target->part + "' with a dense target",
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
  const ImageOptions& images = options_.images;
  const std::size_t number = sample_of(id);
  const Decoded decoded = reading_sample(
      [&] { return decode_sample(number, buffers_of_workers_[static_cast<std::size_t>(worker)], places); });
  if (!images.transform) return decoded.bytes;
  ImageSample sample{
      .id = id, .key = reader_.key(number), .pixels = decoded.pixels.pixels, .size = decoded.pixels.size};
  sample.channels = images.channels;
  sample.out = places.image;
  sample.target = decoded.target.pixels;
  sample.target_size = decoded.target.size;
  sample.target_out = places.target;
  sample.label = places.label;
  sample.seed = sample_seed(options_.plan, epoch, id);
  sample.worker = worker;
  sample.worker_seed = worker_seed(options_.plan, epoch, options_.rank, worker);
  images.transform(sample);
  return decoded.bytes;
}

HostBatch ImageBatchBuilder::build(const MicroBatch& micro_batch, int worker) {
  HostBatch host;
  host.micro_batch = micro_batch;
  if (!micro_batch.block) return host;
  const auto samples = micro_batch.samples(options_.rank);
  const auto count = static_cast<std::int64_t>(samples.size());
  const ImageOptions& images = options_.images;
  Batch& batch = host.batch;
  batch.step = static_cast<std::int64_t>(micro_batch.step_of_epoch());
  batch.last_of_step = micro_batch.last_of_step();

  host.buffer = buffers_->take();
  BufferLayout layout;
  const std::size_t pixels = layout.add(samples.size() * format_.bytes());
  const std::size_t targets = target_ ? layout.add(samples.size() * target_->bytes()) : 0;
  const std::size_t labels = layout.add(samples.size() * sizeof(std::int64_t));
  const std::size_t ids = layout.add(samples.size() * sizeof(std::int64_t));
  batch.images = pixel_tensor(host.buffer, pixels, count, format_);
  if (target_) batch.targets = pixel_tensor(host.buffer, targets, count, *target_);
  if (!images.label.empty()) batch.labels = tensor_on(host.buffer, labels, {count}, torch::kInt64);
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
    if (!images.label.empty()) places.label = label + kept;
    try {
      naming_sample(reader_, id, options_.rank, batch.step,
                    [&] { host.bytes_read += take_sample(id, micro_batch.epoch, worker, places); });
      ++kept;
    } catch (const DamagedSample& damage) {
      skipped_.add(reader_, id, damage);
      ++batch.skipped;
    }
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
