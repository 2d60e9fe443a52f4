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
#include "staging/pack/images/resample.h"
#ifdef LOCKSTEP_WITH_IMAGES
#include "staging/pack/images/codec.h"
#endif

namespace lockstep::data {
namespace {

constexpr int kLookAtImages = 64;

bool is_compressed(std::span<const std::byte> packed) {
  const auto begins_with = [&](std::initializer_list<unsigned> magic) {
    return packed.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), packed.begin(),
                      [](unsigned wanted, std::byte found) { return std::byte(wanted) == found; });
  };
  return begins_with({0x89, 'P', 'N', 'G'}) || begins_with({0xff, 0xd8, 0xff});
}

pack::PixelSize to_pixels(const ImageSize& size) {
  return {size.height, size.width};
}

ImageSize decoded_size([[maybe_unused]] std::span<const std::byte> packed,
                       [[maybe_unused]] const ImageSize& at_least) {
#ifdef LOCKSTEP_WITH_IMAGES
  const pack::PixelSize size = pack::decoded_size(packed, to_pixels(at_least));
  return {size.height, size.width};
#else
  fail("this build cannot decode PNG and JPEG: build with libpng and libjpeg, or pack raw pixels");
#endif
}

void decode([[maybe_unused]] std::span<const std::byte> packed,
            [[maybe_unused]] std::span<std::uint8_t> pixels, [[maybe_unused]] const ImageSize& at_least) {
#ifdef LOCKSTEP_WITH_IMAGES
  pack::decode_image(packed, pixels, to_pixels(at_least));
#endif
}

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

}  // namespace

ImageBatchBuilder::ImageBatchBuilder(const pack::Reader& reader, ImageBuildOptions options)
    : reader_(reader),
      options_(std::move(options)),
      buffers_(
          std::make_shared<BatchBuffers>(buffer_bytes(options_.plan, options_.images), options_.page_locked)),
      buffers_of_workers_(static_cast<std::size_t>(options_.workers)) {
  const ImageSize& size = options_.images.size;
  if (size.height == 0 || size.width == 0 || options_.images.channels == 0) {
    fail_usage("the images' height, width and channels must be above 0, not {} x {} with {} channels",
               size.height, size.width, options_.images.channels);
  }
  if (options_.images.raw == ImageSize{}) options_.images.raw = size;
}

std::size_t ImageBatchBuilder::buffer_bytes(const PlanOptions& plan, const ImageOptions& images) {
  BufferLayout layout;
  layout.add(plan.cap * images.size.height * images.size.width * images.channels);
  layout.add(plan.cap * sizeof(std::int64_t));
  layout.add(plan.cap * sizeof(std::int64_t));
  return std::max<std::size_t>(layout.used(), 1);
}

std::size_t ImageBatchBuilder::image_bytes() const {
  return options_.images.size.height * options_.images.size.width * options_.images.channels;
}

std::int64_t ImageBatchBuilder::label_of(std::size_t number, const std::vector<pack::Part>& parts,
                                         WorkerBuffers& buffers) const {
  const std::string& kind = options_.images.label;
  std::size_t part = 0;
  while (part < parts.size() && parts[part].kind != kind) ++part;
  if (part == parts.size()) fail("there is no part '{}' with a label", kind);
  buffers.label.resize(parts[part].bytes);
  reader_.read_part(number, part, buffers.label);
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
void ImageBatchBuilder::look_at_size(ImageSize decoded, std::span<const std::byte> packed) {
  const ImageOptions& images = options_.images;
  if (options_.rank != 0 || !images.transform || images.decode_at_least != ImageSize{} ||
      looked_at_.load(std::memory_order_relaxed) >= kLookAtImages) {
    return;
  }
  const ImageSize twice{.height = 2 * images.size.height, .width = 2 * images.size.width};
  if (decoded_size(packed, twice).height < decoded.height) ++too_large_;
  if (++looked_at_ != kLookAtImages || too_large_ < kLookAtImages * 3 / 4) return;
  fmt::print(
      stderr,
      "lockstep: the workers decode images of {} x {} pixels for batches of {} x {}: set ImageOptions::decode_at_least = {{{}, {}}} if the transform needs no more, or make the images smaller once (lockstep-pack images)\n",
      decoded.height, decoded.width, images.size.height, images.size.width, twice.height, twice.width);
}

// Returns the number of bytes read.
std::size_t ImageBatchBuilder::take_sample(SampleId id, std::uint64_t epoch, int worker,
                                           std::span<std::uint8_t> out, std::int64_t* label) {
  const ImageOptions& images = options_.images;
  WorkerBuffers& buffers = buffers_of_workers_[static_cast<std::size_t>(worker)];
  const std::size_t number = sample_of(id);
  const std::vector<pack::Part> parts = reader_.parts(number);
  // The image is the first part that is not the label: parts are sorted by name, and "cls" comes before
  // "png".
  std::size_t part = 0;
  while (part < parts.size() && !images.label.empty() && parts[part].kind == images.label) ++part;
  if (part == parts.size()) fail("there is no part with an image");
  buffers.packed.resize(parts[part].bytes);
  reader_.read_part(number, part, buffers.packed);
  if (label != nullptr) *label = label_of(number, parts, buffers);

  const bool compressed = is_compressed(buffers.packed);
  if (compressed && images.channels != ImageSize::kChannels) {
    fail("PNG and JPEG are decoded to {} channels, not {}", ImageSize::kChannels, images.channels);
  }
  const ImageSize size = compressed ? decoded_size(buffers.packed, images.decode_at_least) : images.raw;
  const std::size_t bytes = size.height * size.width * images.channels;
  const bool direct = !images.transform && size == images.size;
  if (!images.transform && !direct) {
    fail("the image is {} x {}, not {} x {}: scale it in a transform, with crop_and_scale()", size.height,
         size.width, images.size.height, images.size.width);
  }
  if (compressed && !direct && size.height > 0 && size.width > images.max_pixels / size.height) {
    fail("the image is {} x {}, more than the {} pixels that ImageOptions::max_pixels allows", size.height,
         size.width, images.max_pixels);
  }
  std::span<const std::uint8_t> pixels;
  if (compressed) {
    look_at_size(size, buffers.packed);
    if (!direct) buffers.pixels.resize(bytes);
    const std::span<std::uint8_t> decoded = direct ? out : std::span(buffers.pixels);
    decode(buffers.packed, decoded, images.decode_at_least);
    pixels = decoded;
  } else {
    if (buffers.packed.size() != bytes) {
      fail("the part '{}' has {} bytes and is neither PNG, JPEG nor {} x {} pixels of {} channels",
           parts[part].kind, buffers.packed.size(), size.height, size.width, images.channels);
    }
    pixels = {reinterpret_cast<const std::uint8_t*>(buffers.packed.data()), bytes};
    if (direct) std::copy(pixels.begin(), pixels.end(), out.begin());
  }
  if (images.transform) {
    ImageSample sample{.id = id, .key = reader_.key(number), .pixels = pixels, .size = size};
    sample.channels = images.channels;
    sample.out = out;
    sample.label = label;
    sample.seed = sample_seed(options_.plan, epoch, id);
    sample.worker = worker;
    sample.worker_seed = worker_seed(options_.plan, epoch, options_.rank, worker);
    images.transform(sample);
  }
  return buffers.packed.size() + (label != nullptr ? buffers.label.size() : 0);
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
  batch.empty = samples.empty();

  host.buffer = buffers_->take();
  BufferLayout layout;
  const std::size_t pixels = layout.add(samples.size() * image_bytes());
  const std::size_t labels = layout.add(samples.size() * sizeof(std::int64_t));
  const std::size_t ids = layout.add(samples.size() * sizeof(std::int64_t));
  const auto height = static_cast<std::int64_t>(images.size.height);
  const auto width = static_cast<std::int64_t>(images.size.width);
  const auto channels = static_cast<std::int64_t>(images.channels);
  // The memory is [count, height, width, channels]; the tensor has the order of dimensions that networks
  // expect.
  batch.images =
      tensor_on(host.buffer, pixels, {count, height, width, channels}, torch::kUInt8).permute({0, 3, 1, 2});
  if (!images.label.empty()) batch.labels = tensor_on(host.buffer, labels, {count}, torch::kInt64);
  batch.sample_ids = tensor_on(host.buffer, ids, {count}, torch::kInt64);
  host.used = layout.used();

  auto* const out = reinterpret_cast<std::uint8_t*>(host.buffer->data() + pixels);
  auto* const label = reinterpret_cast<std::int64_t*>(host.buffer->data() + labels);
  auto* const id_out = reinterpret_cast<std::int64_t*>(host.buffer->data() + ids);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const SampleId id = samples[i];
    id_out[i] = static_cast<std::int64_t>(id);
    naming_sample(reader_, id, options_.rank, batch.step, [&] {
      host.bytes_read += take_sample(id, micro_batch.epoch, worker, {out + i * image_bytes(), image_bytes()},
                                     images.label.empty() ? nullptr : label + i);
    });
  }
  batch.max_length = batch.empty ? 0 : 1;
  batch.token_count = batch.loss_tokens = count;
  host.work_tokens = host.work_squares = static_cast<double>(count);
  return host;
}

}  // namespace lockstep::data
