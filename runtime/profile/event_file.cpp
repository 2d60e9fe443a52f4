#include "runtime/profile/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <system_error>

#include "common/crc32c.h"
#include "common/error.h"
#include "common/files.h"
#include "common/process.h"

namespace lockstep::profile {
namespace {

// Protobuf's wire format. A key is the field's number and the type of its value.
enum class Wire : std::uint8_t { varint = 0, bits64 = 1, bytes = 2, bits32 = 5 };

void put_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message += static_cast<char>(value | 0x80);
  message += static_cast<char>(value);
}

void put_key(std::string& message, unsigned field, Wire type) {
  put_varint(message, field << 3 | static_cast<unsigned>(type));
}

void put_bytes(std::string& message, unsigned field, std::string_view bytes) {
  put_key(message, field, Wire::bytes);
  put_varint(message, bytes.size());
  message += bytes;
}

// Little-endian, as every machine that Lockstep runs on.
template <typename T>
void put_fixed(std::string& message, T value) {
  message.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string event_at(std::uint64_t step) {
  using Seconds = std::chrono::duration<double>;
  std::string event;
  put_key(event, 1, Wire::bits64);  // wall_time
  put_fixed(event, Seconds(std::chrono::system_clock::now().time_since_epoch()).count());
  put_key(event, 2, Wire::varint);  // step
  put_varint(event, step);
  return event;
}

std::uint32_t checksum(std::string_view bytes) {
  return masked_crc32c(crc32c(std::as_bytes(std::span(bytes))));
}

std::filesystem::path file_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("events.out.tfevents.{:010}.{}.{}.0",
                     std::chrono::duration_cast<std::chrono::seconds>(now).count(), node_name(), ::getpid());
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder) : path_(folder / file_name()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot make the folder {}: {}", folder.string(), error.message());
  fd_ = open_file(path_, O_WRONLY | O_CREAT | O_APPEND);
  std::string event = event_at(0);
  put_bytes(event, 3, "brain.Event:2");  // file_version
  write(event);
}

void EventFile::add(std::uint64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    put_bytes(value, 1, name);        // tag
    put_key(value, 2, Wire::bits32);  // simple_value
    put_fixed(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(step);
  put_bytes(event, 5, summary);
  write(event);
}

void EventFile::write(const std::string& event) {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(event.size()));
  put_fixed(record, checksum(record));
  record += event;
  put_fixed(record, checksum(event));
  write_all(fd_.get(), record, path_);
}

}  // namespace lockstep::profile
