#ifndef EGERIA_TESTS_SUPPORT_BFLOAT16_H_
#define EGERIA_TESTS_SUPPORT_BFLOAT16_H_

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace egeria::testing {

// Whether this is the bf16 backend's refusal for want of instructions, on a machine that may want them: oneDNN has
// bfloat16 wherever there is AVX-512, unless it is told to do without (elsewhere it takes avx_ne_convert).
inline bool LacksBfloat16(absl::string_view refusal) {
#if defined(__x86_64__)
  if (std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return false;
  }
#endif
  return absl::StrContains(refusal, "bfloat16 needs a processor with");
}

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_BFLOAT16_H_
