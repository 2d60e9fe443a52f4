#include "staging/pack/images/image_packing.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "common/error.h"
#include "staging/pack/digest.h"
#include "staging/pack/images/codec.h"
#include "staging/pack/images/sample_list.h"
#include "staging/pack/index.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/packer.h"
#include "staging/pack/write/packing.h"
#include "staging/pack/write/unfinished.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSamplesOfThread = 64;  // made before the finished ones are written

struct MadeSample {
  std::vector<SamplePart> parts;
  std::size_t images = 0;
  std::uint64_t source_bytes = 0;
};

// "photo.jpeg" becomes "photo.png".
std::string with_ending(const std::string& kind, const std::string& ending) {
  const std::size_t dot = kind.rfind('.');
  return dot == std::string::npos ? ending : kind.substr(0, dot + 1) + ending;
}

class Maker {
 public:
  Maker(const ImagePackingOptions& options, const SampleList& samples)
      : options_(options), samples_(samples) {}

  MadeSample make(std::size_t sample) const try {
    MadeSample made{.parts = samples_.read(sample)};
    for (const SamplePart& part : made.parts) made.source_bytes += part.bytes.size();
    std::string kinds;
    for (SamplePart& part : made.parts) {
      if (options_.kind.empty() ? !is_image(part.bytes) : part.kind != options_.kind) continue;
      kinds += (kinds.empty() ? "" : ", ") + part.kind;
      ++made.images;
      part.bytes = remake_image(options_.recipe, part.bytes);
      part.kind = with_ending(part.kind, ending_of(options_.recipe.encoding));
    }
    if (made.images == 0) fail("there is no PNG or JPEG to make smaller");
    if (made.images > 1)
      fail(
          "there are several images ({}): name the kind of those to make smaller with --kind; the others are copied",
          kinds);
    std::sort(made.parts.begin(), made.parts.end(),
              [](const SamplePart& a, const SamplePart& b) { return a.kind < b.kind; });
    return made;
  } catch (const Error& error) {
    fail("{}, sample {} ({}): {}", options_.source.string(), sample, samples_.key(sample), error.what());
  }

 private:
  const ImagePackingOptions& options_;
  const SampleList& samples_;
};

// Makes the samples from `begin` with several threads. Throws the error of the first sample that has one.
std::vector<MadeSample> make_block(const Maker& maker, std::size_t begin, std::size_t count,
                                   std::size_t threads) {
  std::vector<MadeSample> made(count);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  {
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < std::min(threads, count); ++t) {
      workers.emplace_back([&] {
        for (std::size_t i = next++; i < count && !failed; i = next++) {
          try {
            made[i] = maker.make(begin + i);
          } catch (...) {
            errors[i] = std::current_exception();
            failed = true;
          }
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return made;
}

void add_sample(Packer& packer, const std::string& key, const MadeSample& sample,
                ImagePackingResult& result) {
  std::uint64_t bytes = 0;
  for (const SamplePart& part : sample.parts) bytes += member_bytes(part.bytes.size());
  packer.begin_sample(key, bytes);
  for (const SamplePart& part : sample.parts) {
    packer.begin_part(part.kind, part.bytes.size());
    packer.write(part.bytes);
    packer.end_part(xxh3_64(part.bytes));
    result.payload_bytes += part.bytes.size();
  }
  ++result.samples;
  result.images += sample.images;
  result.source_bytes += sample.source_bytes;
}

std::size_t threads_of(const ImagePackingOptions& options) {
  if (options.threads > 0) return static_cast<std::size_t>(options.threads);
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

ImagePackingResult pack_images(const ImagePackingOptions& options) {
  FileSystem& system = options.system != nullptr ? *options.system : FileSystem::real();
  const fs::path out = new_folder(options.out, system);  // before a large folder is listed
  const std::unique_ptr<SampleList> samples = list_samples(options.source, options.filters);
  Unfinished unfinished(unfinished_folder(out), out, system);
  const fs::path work = working_folder(unfinished, out, system);
  const fs::path pack = work / "pack";
  (void)system.make_folder(pack, 0755);
  Journal journal(work / kJournal, "images", system);
  Packer packer({.folder = pack, .shard_bytes = options.shard_bytes}, journal, system);
  const Maker maker(options, *samples);
  const std::size_t threads = threads_of(options);
  ImagePackingResult result;
  for (std::size_t begin = 0; begin < samples->size(); begin += threads * kSamplesOfThread) {
    const std::size_t count = std::min(threads * kSamplesOfThread, samples->size() - begin);
    const std::vector<MadeSample> made = make_block(maker, begin, count, threads);
    for (std::size_t i = 0; i < count; ++i) add_sample(packer, samples->key(begin + i), made[i], result);
    if (options.progress) options.progress(result.samples, samples->size());
    if (options.stop != nullptr && options.stop->load()) throw Stopped("stopped: nothing is kept");
  }
  packer.finish();
  write_index(pack / kIndexName, 0, pieces_of(journal), system);
  publish_pack(pack, out, system);
  result.shards = journal.shards();
  return result;
}

}  // namespace lockstep::pack
