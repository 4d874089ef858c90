// Descriptors of memory that a process gives to one that may read it and no more, and what that one
// looks at before it touches what it was given. Stateless; thread-safe.
#ifndef TESSERA_SHM_SHARED_FILE_H_
#define TESSERA_SHM_SHARED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace tessera {

// The same file, opened for reading: no mapping of it can be made, or become, writable.
// Errors: FailedPrecondition  no /proc; ResourceExhausted  no descriptor is left.
absl::StatusOr<UniqueFd> ReopenForReading(int fd);

// A file of memory that nobody can change any more. Errors: ResourceExhausted.
absl::StatusOr<UniqueFd> MakeSealedFile(absl::string_view label, absl::string_view bytes);

// Its size, which it keeps: else a mapping of it might end in a SIGBUS.
// Errors: DataLoss  no file of memory, or one that may shrink.
absl::StatusOr<int64_t> SizeOfSealed(int fd);
// All of a file that MakeSealedFile made, which has at most so many bytes. Errors: DataLoss.
absl::StatusOr<std::string> ReadSealedFile(int fd, int64_t most_bytes);

}  // namespace tessera

#endif  // TESSERA_SHM_SHARED_FILE_H_
