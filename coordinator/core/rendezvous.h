// The small values by which the ranks of one job's current epoch find each other: written once a
// key, gone with the epoch. Copyable value; thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_RENDEZVOUS_H_
#define TESSERA_COORDINATOR_CORE_RENDEZVOUS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::coordinator {

constexpr int64_t kMaxValueSizeBytes = 64 << 10;
constexpr int64_t kMaxValuesPerEpoch = 4096;

class Rendezvous {
 public:
  // Whether `key` may be set to `value`; true in `*is_new` where that changes anything.
  // Errors: AlreadyExists      the key holds another value
  //         ResourceExhausted  too many keys
  absl::Status CheckPut(absl::string_view key, absl::string_view value, bool* is_new) const;
  void Put(std::string key, std::string value);
  // Null where nothing is there yet.
  std::shared_ptr<const std::string> Get(absl::string_view key) const;

 private:
  std::map<std::string, std::shared_ptr<const std::string>, std::less<>> values_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_RENDEZVOUS_H_
