#ifndef EGERIA_COMMON_POLICY_RULES_PROPOSAL_H_
#define EGERIA_COMMON_POLICY_RULES_PROPOSAL_H_

#include <string>

namespace egeria::policy {

// What a rule wants to be frozen, and why: modules 0..prefix-1, and one sentence with the numbers.
struct Proposal {
  int prefix = 0;
  std::string reason;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_PROPOSAL_H_
