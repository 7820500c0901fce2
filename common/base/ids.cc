#include "common/base/ids.h"

#include <cstdio>
#include <random>

namespace egeria {

bool JobId::IsValid() const {
  if (text_.size() != 36) return false;
  for (size_t i = 0; i < text_.size(); ++i) {
    const char c = text_[i];
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (dash ? c != '-' : !hex) return false;
  }
  return true;
}

JobId JobId::Random() {
  std::random_device device;
  auto word = [&device] { return static_cast<uint32_t>(device()); };
  const uint32_t a = word(), b = word(), c = word(), d = word();
  char text[37];
  std::snprintf(text, sizeof(text), "%08x-%04x-4%03x-%04x-%04x%08x", a, b >> 16, b & 0xfff, 0x8000 | (c >> 16 & 0x3fff),
                c & 0xffff, d);
  return JobId(text);
}

std::string RandomToken() {
  std::random_device device;
  char text[33];
  std::snprintf(text, sizeof(text), "%08x%08x%08x%08x", device(), device(), device(), device());
  return text;
}

}  // namespace egeria
