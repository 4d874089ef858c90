// Messages of a stream as fuzzers give them: one after the other, each after its length, a varint.
#ifndef TESSERA_TESTS_FUZZ_MESSAGES_H_
#define TESSERA_TESTS_FUZZ_MESSAGES_H_

#include "absl/strings/string_view.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message_lite.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/util/delimited_message_util.h"

namespace tessera::fuzz {

// Views `bytes`. Thread-compatible.
class Messages {
 public:
  explicit Messages(absl::string_view bytes)
      : stream_(bytes.data(), static_cast<int>(bytes.size())) {
    google::protobuf::SetLogHandler(nullptr);  // It has a line for each text that is not a message.
  }

  // False: none is left, or the bytes are not such a message.
  bool Next(google::protobuf::MessageLite* message) {
    message->Clear();
    return google::protobuf::util::ParseDelimitedFromZeroCopyStream(message, &stream_, nullptr);
  }

 private:
  google::protobuf::io::ArrayInputStream stream_;
};

}  // namespace tessera::fuzz

#endif  // TESSERA_TESTS_FUZZ_MESSAGES_H_
