#include "tessera/session_options.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {

namespace {

// Empty: not set.
std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status ReadNeeded(const char* name, std::string* value) {
  *value = Variable(name);
  if (!value->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      name,
      " is not set in the environment: start the program by `tessera run -n RANKS -- PROGRAM`, ",
      "or set it as that does"));
}

absl::Status ReadNeeded(const char* name, int* number) {
  std::string text;
  const absl::Status status = ReadNeeded(name, &text);
  if (!status.ok()) return status;
  if (absl::SimpleAtoi(text, number)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("in the environment, ", name, " is '", text, "', which is not a number"));
}

}  // namespace

absl::StatusOr<SessionOptions> OptionsFromLauncher() {
  SessionOptions options;
  absl::Status status = ReadNeeded("TESSERA_COORDINATOR", &options.coordinator_address);
  status.Update(ReadNeeded("TESSERA_WORKER", &options.worker_address));
  status.Update(ReadNeeded("RANK", &options.rank));
  status.Update(ReadNeeded("WORLD_SIZE", &options.config.world_size));
  if (!status.ok()) return status;
  options.job_id = Variable("TESSERA_JOB");
  if (options.job_id.empty()) options.job_id = "train";
  options.tls = {Variable("TESSERA_TLS_CERT"), Variable("TESSERA_TLS_KEY"),
                 Variable("TESSERA_TLS_CA")};
  options.insecure_connect = Variable("TESSERA_INSECURE_CONNECT") == "1";
  options.wait_if_attached = true;
  return options;
}

}  // namespace tessera
