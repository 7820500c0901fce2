#include "controller/job/proto_time.h"

#include <cstdint>

namespace egeria::controller {

google::protobuf::Timestamp TimeToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return proto;
  const int64_t seconds = absl::ToUnixSeconds(time);
  proto.set_seconds(seconds);
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
  return proto;
}

absl::Time TimeFromProto(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

google::protobuf::Duration DurationToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace egeria::controller
