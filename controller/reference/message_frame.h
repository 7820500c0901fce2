#ifndef EGERIA_CONTROLLER_REFERENCE_MESSAGE_FRAME_H_
#define EGERIA_CONTROLLER_REFERENCE_MESSAGE_FRAME_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "google/protobuf/message_lite.h"

// egeria-controller and egeria-reference send each other messages over a socket. Each stands behind its size in bytes,
// a uint32_t as this machine writes it.
namespace egeria::reference {

// Appends the size and the message.
inline void AppendFrame(const google::protobuf::MessageLite& message, std::string* text) {
  const auto size = static_cast<uint32_t>(message.ByteSizeLong());
  text->append(reinterpret_cast<const char*>(&size), sizeof(size));
  message.AppendToString(text);
}

// Takes the first message off the text, still serialized; nullopt where it has not all come yet. A larger one than
// `most_bytes` is cut off, so that it cannot be parsed.
inline std::optional<std::string> TakeFrame(std::string* text,
                                            uint32_t most_bytes = std::numeric_limits<uint32_t>::max()) {
  uint32_t size = 0;
  if (text->size() < sizeof(size)) return std::nullopt;
  std::memcpy(&size, text->data(), sizeof(size));
  size = std::min(size, most_bytes);
  if (text->size() - sizeof(size) < size) return std::nullopt;
  std::string message = text->substr(sizeof(size), size);
  text->erase(0, sizeof(size) + size);
  return message;
}

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_MESSAGE_FRAME_H_
