#include "common/base/printable.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace egeria {
namespace {

// The code point that begins `text`, and its bytes; none where they are no UTF-8.
struct Decoded {
  uint32_t point = 0;
  size_t bytes = 0;
};

Decoded Decode(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {};
  uint32_t point = first & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    point = point << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  if (point < kLeast[bytes] || point > 0x10ffff || surrogate) return {};
  return {point, bytes};
}

bool IsHarmless(uint32_t point) {
  if (point < 0x20 || (point >= 0x7f && point < 0xa0)) return false;                           // control characters
  if (point >= 0x200b && point <= 0x200f) return false;                                        // no width, direction
  if (point == 0x2028 || point == 0x2029 || point == 0x061c || point == 0xfeff) return false;  // ends of lines
  if ((point >= 0x202a && point <= 0x202e) || (point >= 0x2060 && point <= 0x206f)) return false;  // direction
  return point < 0xe0000 || point > 0xe007f;                                                       // invisible tags
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Decoded decoded = Decode(text);
    const size_t bytes = decoded.bytes == 0 ? 1 : decoded.bytes;
    if (decoded.bytes > 0 && IsHarmless(decoded.point)) {
      line.append(text.data(), bytes);
    } else if (text[0] == '\n') {
      line += "\\n";
    } else if (decoded.point >= 0x80) {
      absl::StrAppend(&line, "\\u", absl::Hex(decoded.point, absl::kZeroPad4));
    } else {
      absl::StrAppend(&line, "\\x", absl::Hex(static_cast<unsigned char>(text[0]), absl::kZeroPad2));
    }
    text.remove_prefix(bytes);
  }
  return line;
}

}  // namespace egeria
