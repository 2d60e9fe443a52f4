// The bytes of Megatron-Core's .idx, little-endian: magic, u64 version, u8 type, u64 sequences, u64 entries
// of the table of documents, then i32 length[sequences], i64 offset[sequences], i64 document[entries], and
// for multimodal data i8 mode[sequences].
#pragma once

#include <array>
#include <cstdint>

#include "staging/pack/formats/token_type.h"

namespace lockstep::pack::megatron {

inline constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
inline constexpr std::uint64_t kVersion = 1;

/// The type with code c is kTypes[c - 1].
inline constexpr std::array<TokenType, 8> kTypes = {TokenType::u8,  TokenType::i8,  TokenType::i16,
                                                    TokenType::i32, TokenType::i64, TokenType::f64,
                                                    TokenType::f32, TokenType::u16};

/// No file is longer; keeps sums of lengths from wrapping.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;

}  // namespace lockstep::pack::megatron
