// The secret by which a user's programs recognize each other on connections that do not identify
// the peer: TCP without TLS, which any user of the machine can dial.
//
//   $TESSERA_TOKEN_FILE, else ~/.config/tessera/token: mode 0600, 64 hexadecimal digits
//
// The first server that needs it makes the file; clients read it and send it with each call.
// Stateless; thread-safe.
#ifndef TESSERA_NET_ACCESS_TOKEN_H_
#define TESSERA_NET_ACCESS_TOKEN_H_

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The metadata in which a call carries it.
inline constexpr char kTokenMetadata[] = "tessera-token";

// Where this user's is.
// Errors: FailedPrecondition  the user has no home folder, and the variable is not set
absl::StatusOr<std::string> AccessTokenPath();

// Errors: NotFound            there is no such file
//         PermissionDenied    it cannot be read, is another user's, or others may read or write it
//         InvalidArgument     it is not a regular file, or holds something else
absl::StatusOr<std::string> ReadAccessToken(const std::string& path);
// Makes it, and its folder, where it is missing. Errors: as above, and those of files.
absl::StatusOr<std::string> ReadOrMakeAccessToken(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_NET_ACCESS_TOKEN_H_
