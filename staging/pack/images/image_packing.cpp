#include "staging/pack/images/image_packing.h"

#include <algorithm>
#include <exception>
#include <list>
#include <thread>
#include <utility>

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
  std::vector<std::vector<SamplePart>> packs;  // the parts in each pack
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
      : options_(options),
        samples_(samples),
        recipes_(std::max<std::size_t>(options.sizes.size(), 1), options.recipe) {
    for (std::size_t i = 0; i < options.sizes.size(); ++i) recipes_[i].resize = options.sizes[i];
  }

  MadeSample make(std::size_t sample) const try {
    MadeSample made{.packs = std::vector<std::vector<SamplePart>>(recipes_.size())};
    std::string kinds;
    for (SamplePart& part : samples_.read(sample)) {
      made.source_bytes += part.bytes.size();
      if (options_.kind.empty() ? !is_image(part.bytes) : part.kind != options_.kind) {
        for (auto& parts : made.packs) parts.push_back(part);
        continue;
      }
      kinds += (kinds.empty() ? "" : ", ") + part.kind;
      ++made.images;
      auto images = remake_image(recipes_, part.bytes);
      for (std::size_t i = 0; i < images.size(); ++i) {
        made.packs[i].push_back({.kind = with_ending(part.kind, ending_of(options_.recipe.encoding)),
                                 .bytes = std::move(images[i])});
      }
    }
    if (made.images == 0) fail("there is no PNG or JPEG to make smaller");
    if (made.images > 1)
      fail(
          "there are several images ({}): name the kind of those to make smaller with --kind; the others are copied",
          kinds);
    for (auto& parts : made.packs) {
      std::sort(parts.begin(), parts.end(),
                [](const SamplePart& a, const SamplePart& b) { return a.kind < b.kind; });
    }
    return made;
  } catch (const Error& error) {
    fail("{}, sample {} ({}): {}", options_.source.string(), sample, samples_.key(sample), error.what());
  }

 private:
  const ImagePackingOptions& options_;
  const SampleList& samples_;
  std::vector<ImageRecipe> recipes_;  // one for each pack
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

// A pack that is being written. It is removed unless it is published.
class NewPack {
 public:
  NewPack(fs::path out, std::uint64_t shard_bytes, FileSystem& system)
      : out_(std::move(out)),
        system_(system),
        unfinished_(unfinished_folder(out_), out_, system),
        work_(working_folder(unfinished_, out_, system)),
        folder_(make_folder(work_ / kPack, system)),
        journal_(work_ / kJournal, "images", system),
        packer_({.folder = folder_, .shard_bytes = shard_bytes}, journal_, system) {}

  void add(const std::string& key, const std::vector<SamplePart>& parts) {
    std::uint64_t bytes = 0;
    for (const SamplePart& part : parts) bytes += member_bytes(part.bytes.size());
    packer_.begin_sample(key, bytes);
    for (const SamplePart& part : parts) {
      packer_.begin_part(part.kind, part.bytes.size());
      packer_.write(part.bytes);
      packer_.end_part(xxh3_64(part.bytes));
      payload_bytes_ += part.bytes.size();
    }
  }
  void finish() {
    packer_.finish();
    write_index(folder_ / kIndexName, 0, journal_, system_);
  }
  ImagePackingResult::Pack publish() {
    publish_pack(folder_, out_, system_);
    return {.out = out_, .shards = journal_.shards(), .payload_bytes = payload_bytes_};
  }

 private:
  static fs::path make_folder(fs::path folder, FileSystem& system) {
    (void)system.make_folder(folder, 0755);
    return folder;
  }

  fs::path out_;
  FileSystem& system_;
  Unfinished unfinished_;
  fs::path work_;
  fs::path folder_;
  Journal journal_;
  Packer packer_;
  std::uint64_t payload_bytes_ = 0;
};

std::vector<fs::path> folders_of(const ImagePackingOptions& options, FileSystem& system) {
  if (options.sizes.size() < 2) return {new_folder(options.out, system)};
  std::vector<fs::path> folders;
  for (const std::size_t size : options.sizes) {
    if (std::count(options.sizes.begin(), options.sizes.end(), size) > 1)
      fail_usage("the size {} is given twice", size);
    folders.push_back(new_folder(fmt::format("{}-{}", options.out.string(), size), system));
  }
  return folders;
}

std::size_t threads_of(const ImagePackingOptions& options) {
  if (options.threads > 0) return static_cast<std::size_t>(options.threads);
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

ImagePackingResult pack_images(const ImagePackingOptions& options) {
  FileSystem& system = options.system != nullptr ? *options.system : FileSystem::real();
  const std::vector<fs::path> folders = folders_of(options, system);  // before a large folder is listed
  const std::unique_ptr<SampleList> samples = list_samples(options.source, options.filters);
  std::list<NewPack> packs;
  for (const fs::path& out : folders) packs.emplace_back(out, options.shard_bytes, system);
  const Maker maker(options, *samples);
  const std::size_t threads = threads_of(options);
  ImagePackingResult result;
  for (std::size_t begin = 0; begin < samples->size(); begin += threads * kSamplesOfThread) {
    const std::size_t count = std::min(threads * kSamplesOfThread, samples->size() - begin);
    const std::vector<MadeSample> made = make_block(maker, begin, count, threads);
    for (std::size_t i = 0; i < count; ++i) {
      auto parts = made[i].packs.begin();
      for (NewPack& pack : packs) pack.add(samples->key(begin + i), *parts++);
      result.images += made[i].images;
      result.source_bytes += made[i].source_bytes;
    }
    result.samples += count;
    if (options.progress) options.progress(result.samples, samples->size());
    if (options.stop != nullptr && options.stop->load()) throw Stopped("stopped: nothing is kept");
  }
  for (NewPack& pack : packs) pack.finish();
  for (NewPack& pack : packs) result.packs.push_back(pack.publish());
  return result;
}

}  // namespace lockstep::pack
