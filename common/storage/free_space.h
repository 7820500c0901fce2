#ifndef EGERIA_COMMON_STORAGE_FREE_SPACE_H_
#define EGERIA_COMMON_STORAGE_FREE_SPACE_H_

#include <cstdint>
#include <string>

namespace egeria {

// The bytes that this process may still write to the file system of `folder`. Returns more than anybody needs where the
// file system does not tell.
int64_t FreeBytes(const std::string& folder);

}  // namespace egeria

#endif  // EGERIA_COMMON_STORAGE_FREE_SPACE_H_
