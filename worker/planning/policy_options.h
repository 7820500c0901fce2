#ifndef EGERIA_WORKER_PLANNING_POLICY_OPTIONS_H_
#define EGERIA_WORKER_PLANNING_POLICY_OPTIONS_H_

#include <optional>
#include <string>

// These functions tell Python of the policies and their constants, so that it declares and checks none itself.
namespace egeria::worker {

// Returns every policy and its constants as JSON, for Python and for the documents:
//   [{"name":..,"sentence":..,"reads_plasticity":..,"times_first_steps":..,
//     "constants":[{"name":..,"sentence":..,"unit":..,"range":..,"default":..},..]},..]
std::string DescribePolicies();

// Says in words what the value of a policy's constant must be; empty where this one, in JSON, fits. Text that is no
// JSON never fits, and a constant that the policy does not have takes no value.
std::optional<std::string> Misfit(const std::string& policy, const std::string& constant,
                                  const std::string& value_json);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_PLANNING_POLICY_OPTIONS_H_
