#include "job/live_array_codec.h"

#include "absl/strings/str_cat.h"

namespace tessera {

v1::LiveStateArray EncodeLiveArray(LiveArray array) {
  switch (array) {
    case LiveArray::kParameter:
      return v1::LIVE_STATE_ARRAY_PARAMETER;
    case LiveArray::kFirstMoment:
      return v1::LIVE_STATE_ARRAY_FIRST_MOMENT;
    case LiveArray::kSecondMoment:
      return v1::LIVE_STATE_ARRAY_SECOND_MOMENT;
    case LiveArray::kBuffer:
      return v1::LIVE_STATE_ARRAY_BUFFER;
  }
  return v1::LIVE_STATE_ARRAY_UNSPECIFIED;
}

absl::StatusOr<LiveArray> DecodeLiveArray(v1::LiveStateArray array) {
  switch (array) {
    case v1::LIVE_STATE_ARRAY_PARAMETER:
      return LiveArray::kParameter;
    case v1::LIVE_STATE_ARRAY_FIRST_MOMENT:
      return LiveArray::kFirstMoment;
    case v1::LIVE_STATE_ARRAY_SECOND_MOMENT:
      return LiveArray::kSecondMoment;
    case v1::LIVE_STATE_ARRAY_BUFFER:
      return LiveArray::kBuffer;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the state has no array ", static_cast<int>(array)));
  }
}

}  // namespace tessera
