#ifndef EGERIA_CONTROLLER_JOB_PROTO_TIME_H_
#define EGERIA_CONTROLLER_JOB_PROTO_TIME_H_

#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"

// Between absl's times and protobuf's.
namespace egeria::controller {

// An infinite time becomes the time of an absent message, 1970.
inline google::protobuf::Timestamp TimeToProto(absl::Time time) {
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return {};
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(time));
}

inline absl::Time TimeFromProto(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_PROTO_TIME_H_
