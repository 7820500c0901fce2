#ifndef EGERIA_COMMON_POLICY_TRAINING_FRACTIONS_H_
#define EGERIA_COMMON_POLICY_TRAINING_FRACTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

// These functions tell where a part of a training lies in steps, and how deep a prefix reaches in time.
namespace egeria::policy {

// Returns ceil(fraction * total_steps), with a slack that keeps 0.07 * 100, a little over 7 in floating point, at step
// 7.
int64_t StepAtFraction(double fraction, int64_t total_steps);

// Returns a part of so many steps in whole ones, at least one, for periods.
int64_t StepsOfPart(double part, double steps);

// Says whether learning rates have an area under them: two or more, finite, none negative and not all 0.
bool HaveArea(const std::vector<double>& rates);

// Says whether learning rates have an area and no sudden fall. From one point to the next they may fall by a tenth of
// the peak, or by three times what a straight line down to 0 falls by.
bool FallSmoothly(const std::vector<double>& rates);

// Returns the area under learning rates that are linear between points one apart, from the first point to `points`
// after it.
double AreaUntil(double points, const std::vector<double>& rates);

// Returns the first step at which the area under the learning rates, which are linear between the points of `rates`
// (evenly spread over 0..total_steps), has reached `fraction` of the whole. Requires HaveArea(rates) and total_steps >=
// 1.
int64_t StepAtArea(double fraction, const std::vector<double>& rates, int64_t total_steps);

// Returns each module's share of the time of a step; where the job does not tell, all have the same one.
std::vector<double> TimeSharesOf(const JobShape& shape);

// Returns the smallest prefix k >= 1 whose shares[0] + .. + shares[k-1] reaches `amount` (relative slack 1e-9); all but
// the last module where none does.
int SmallestPrefixReaching(double amount, const std::vector<double>& shares);

// Returns the prefix k >= 1, all but the last module at most, whose shares[0] + .. + shares[k-1] is nearest to
// `amount`; the smaller one of two.
int PrefixNearestTo(double amount, const std::vector<double>& shares);

// Returns shares[0] + .. + shares[prefix-1].
double ShareOfPrefix(int prefix, const std::vector<double>& shares);

// Returns r = max(0, c - c_k) / (c S(k)), how much of what the shares promise of prefix k has come true. A step takes
// the time c with nothing frozen, and c_k with prefix k. Empty where the account does not tell, or so little was
// promised (under a twentieth of a step) that it would tell of the machine's moods.
std::optional<double> RealisedSaving(const Account& account, const std::vector<double>& shares);

// Returns the steps between two gradient readings of a policy that looks at them every `period` steps: a fiftieth, at
// least 2, since a reading takes some percent of a step. Where there is one rank it costs about another backward pass,
// so at least 20.
int GradientInterval(int64_t period, const JobShape& shape);

// Returns how many steps before a look at them gradients are to be told of: as many as `readings` take, but no more
// than four periods where a quarter more than `min_readings` readings come sooner.
int64_t GradientLead(int interval, int readings, int min_readings, int64_t period);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_TRAINING_FRACTIONS_H_
