// The program that formats_test.py runs. It reads any source and prints its samples, or writes a Megatron
// dataset from JSON lines on standard input: {"tokens": hex digits, "end": whether a document ends here}.
//
// Usage: formats_peer read SOURCE | formats_peer write PREFIX TYPE

#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "staging/pack/formats/megatron_writer.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

std::vector<std::byte> bytes_of_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at + 2 <= text.size(); at += 2) {
    unsigned value = 0;
    std::from_chars(text.data() + at, text.data() + at + 2, value, 16);
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

void read(const std::string& source) {
  const auto reader = open(source);
  reader->verify();
  for (std::size_t i = 0; i < reader->size(); ++i) {
    nlohmann::json parts = nlohmann::json::array();
    for (std::size_t p = 0; p < reader->parts(i).size(); ++p) {
      const Part part = reader->parts(i)[p];
      std::vector<std::byte> payload(part.bytes);
      reader->read_part(i, p, payload);
      parts.push_back({{"kind", part.kind}, {"bytes", hex(payload)}});
    }
    fmt::print(
        "{}\n",
        nlohmann::json{{"key", reader->key(i)}, {"tokens", reader->tokens(i)}, {"parts", parts}}.dump());
  }
}

void write(const std::string& prefix, const std::string& type_name) {
  TokenType type = TokenType::none;
  for (const TokenType each : {TokenType::u8, TokenType::i8, TokenType::u16, TokenType::i16, TokenType::u32,
                               TokenType::i32, TokenType::i64, TokenType::f32, TokenType::f64}) {
    if (name_of(each) == type_name) type = each;
  }
  MegatronWriter writer(prefix, type);
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = nlohmann::json::parse(line);
    writer.add_sequence(bytes_of_hex(json.at("tokens").get<std::string>()));
    if (json.at("end").get<bool>()) writer.end_document();
  }
  writer.finish();
}

}  // namespace
}  // namespace lockstep::pack

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 2 && arguments[0] == "read") {
      lockstep::pack::read(arguments[1]);
    } else if (arguments.size() == 3 && arguments[0] == "write") {
      lockstep::pack::write(arguments[1], arguments[2]);
    } else {
      lockstep::fail_usage("usage: formats_peer read SOURCE | formats_peer write PREFIX TYPE");
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "formats_peer: " << error.what() << '\n';
    return 1;
  }
}
