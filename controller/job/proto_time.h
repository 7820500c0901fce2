#ifndef EGERIA_CONTROLLER_JOB_PROTO_TIME_H_
#define EGERIA_CONTROLLER_JOB_PROTO_TIME_H_

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace egeria::controller {

// Between absl's and protobuf's times. An infinite or absent time is the absent message's, 1970.
google::protobuf::Timestamp TimeToProto(absl::Time time);
absl::Time TimeFromProto(const google::protobuf::Timestamp& proto);
google::protobuf::Duration DurationToProto(absl::Duration duration);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_PROTO_TIME_H_
