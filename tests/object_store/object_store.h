// moto's server and a proxy that fails on purpose (serve.py), for a test's lifetime. The environment
// of this process, and of those that it starts, leads there.
#ifndef TESSERA_TESTS_OBJECT_STORE_OBJECT_STORE_H_
#define TESSERA_TESTS_OBJECT_STORE_OBJECT_STORE_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

class ObjectStore {
 public:
  // Errors: NotFound  moto is not installed, saying how to install it; Internal  it does not start.
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Start();
  ~ObjectStore();
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // "s3://BUCKET/NAME"
  std::string Path(const std::string& name) const;
  // As serve.py has them; the others are these.
  nlohmann::json Ask(const nlohmann::json& command);
  nlohmann::json SetFaults(nlohmann::json faults);
  void Heal() { SetFaults(nlohmann::json::object()); }
  int64_t NumSpoiled() { return Ask({{"do", "counts"}})["spoiled"].get<int64_t>(); }
  std::vector<std::string> Keys() { return Ask({{"do", "keys"}}).get<std::vector<std::string>>(); }
  std::vector<std::string> Uploads() {
    return Ask({{"do", "uploads"}}).get<std::vector<std::string>>();
  }

 private:
  ObjectStore() = default;
  // Errors: also Internal  it ended.
  absl::StatusOr<nlohmann::json> ReadLine();

  pid_t process_ = 0;
  int commands_ = -1, answers_ = -1;
  std::string read_;  // Beyond the last line.
  std::string bucket_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_OBJECT_STORE_OBJECT_STORE_H_
