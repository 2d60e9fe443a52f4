// The bytes of Megatron-Core's .idx, little-endian:
//
//   magic, u64 version, u8 type, u64 sequences, u64 entries
//   i32 length[sequences]
//   i64 offset[sequences]
//   i64 document[entries]
//   i8  mode[sequences]       for multimodal data only
//
// The format comes from fairseq. Its files have no documents: they end with the offsets, and the number of documents is
// missing too.
#pragma once

#include <array>
#include <cstdint>

#include "staging/pack/reader.h"

namespace lockstep::pack::megatron {

inline constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
inline constexpr std::uint64_t kVersion = 1;

/// The type with code c is kTypes[c - 1]. Megatron-Core has the first eight; fairseq and forks of Megatron also the others.
/// Some forks use 6 and 7 the other way round: the offsets show the size of a token.
inline constexpr std::array<TokenType, 10> kTypes = {
    TokenType::u8,  TokenType::i8,  TokenType::i16, TokenType::i32, TokenType::i64,
    TokenType::f64, TokenType::f32, TokenType::u16, TokenType::u32, TokenType::u64};

/// The size of the largest possible file, so that sums of lengths cannot overflow.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;

}  // namespace lockstep::pack::megatron
