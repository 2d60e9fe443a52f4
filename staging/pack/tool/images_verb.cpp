#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/number.h"
#include "common/progress.h"
#include "common/units.h"
#include "staging/pack/images/image_packing.h"
#include "staging/pack/tool/packing_verb.h"
#include "staging/pack/tool/verbs.h"

namespace lockstep::pack {
namespace {

struct ImagesArguments {
  ImagePackingOptions options;
  std::string shard_size = "256M";
  std::string crop;
};

// "224x192" is 224 pixels high and 192 wide.
PixelSize parse_size(const std::string& text) {
  const std::string_view view = text;
  const std::size_t x = std::min(view.find('x'), view.size() - 1);
  const PixelSize size{.height = to_number<std::size_t>(view.substr(0, x)).value_or(0),
                       .width = to_number<std::size_t>(view.substr(x + 1)).value_or(0)};
  if (size.height == 0 || size.width == 0)
    fail_usage("--crop '{}': must be HEIGHTxWIDTH in pixels, such as 224x224", text);
  return size;
}

void run_images(const Tool& tool, ImagesArguments& arguments) {
  const std::uint64_t begin = monotonic_ns();
  ImagePackingOptions& options = arguments.options;
  options.shard_bytes = parse_shard_size(arguments.shard_size);
  if (!arguments.crop.empty()) options.recipe.crop = parse_size(arguments.crop);
  refuse_out_inside(options.source, options.out);
  ImagePackingResult result;
  run_until_stopped(tool, [&](const std::atomic<bool>& asked) {
    options.stop = &asked;
    std::optional<Progress> progress;
    options.progress = [&](std::size_t done, std::size_t samples) {
      if (!progress) progress.emplace("packing images:", samples, Progress::Unit::things);
      progress->update(done);
    };
    result = pack_images(options);
  });
  const double seconds = seconds_between(begin, monotonic_ns());
  for (const ImagePackingResult::Pack& pack : result.packs) {
    if (tool.json()) {
      Tool::print({{"source", options.source.string()},
                   {"out", pack.out.string()},
                   {"samples", result.samples},
                   {"images", result.images},
                   {"shards", pack.shards},
                   {"source_bytes", result.source_bytes},
                   {"payload_bytes", pack.payload_bytes},
                   {"seconds", seconds}});
      continue;
    }
    fmt::print("{}: packed {} image{} in {} shard{}: {} instead of {} in {}\n", pack.out.string(),
               result.images, result.images == 1 ? "" : "s", pack.shards, pack.shards == 1 ? "" : "s",
               format_bytes(pack.payload_bytes), format_bytes(result.source_bytes), format_seconds(seconds));
  }
}

}  // namespace

void add_images_verb(Tool& tool) {
  const auto arguments = std::make_shared<ImagesArguments>();
  ImagePackingOptions& options = arguments->options;
  ImageRecipe& recipe = options.recipe;
  CLI::App& images = tool.verb("images", "Pack PNG and JPEG images, scaled, cropped and encoded again",
                               [&tool, arguments] { run_images(tool, *arguments); });
  images.add_option("source", options.source, "Folder of image files, or a pack")
      ->required()
      ->check(Tool::named());
  images.add_option("--out", options.out, "The pack: a new folder")->required()->check(Tool::named());
  images
      .add_option(
          "--resize", options.sizes,
          "Length of the shorter side in pixels; the longer one keeps the ratio. Several, such as 256,128, make a pack for each: OUT-256, OUT-128")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::PositiveNumber);
  add_choice<Filter>(images, "--resample", recipe.filter,
                     {{"lanczos", Filter::lanczos}, {"triangle", Filter::triangle}, {"box", Filter::box}},
                     "How pixels are averaged: lanczos (sharpest), triangle or box (fastest)");
  images.add_option("--crop", arguments->crop, "Part in the middle to keep, as HEIGHTxWIDTH, after scaling");
  images.add_flag("--grey", recipe.grey, "One channel instead of red, green and blue");
  add_choice<ImageRecipe::Encoding>(images, "--encode", recipe.encoding,
                                    {{"jpeg", ImageRecipe::Encoding::jpeg},
                                     {"png", ImageRecipe::Encoding::png},
                                     {"raw", ImageRecipe::Encoding::raw}},
                                    "jpeg, png, or raw pixels, which need no decoding");
  images.add_option("--quality", recipe.quality, "Of JPEG")->check(CLI::Range(1, 100))->capture_default_str();
  images.add_option("--kind", options.kind,
                    "Ending of the images' names, if a sample has several images; others are copied");
  images.add_option("--filter", options.filters,
                    "Pack only files whose path or name matches this pattern (may be repeated)");
  images.add_option("--shard-size", arguments->shard_size, "Largest size of a shard")->capture_default_str();
  images.add_option("--threads", options.threads, "Threads that decode and encode; 0: one for each CPU")
      ->check(CLI::Range(0, 256));
}

}  // namespace lockstep::pack
