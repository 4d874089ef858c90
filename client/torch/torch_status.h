// Turns what libtorch and the user's code throw into statuses.
#ifndef TESSERA_CLIENT_TORCH_TORCH_STATUS_H_
#define TESSERA_CLIENT_TORCH_TORCH_STATUS_H_

#include <cxxabi.h>

#include <exception>
#include <functional>

#include "absl/status/status.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded.h"

namespace tessera {

// Of the exception that is being handled, where it is not a std::exception: Unknown with its type.
absl::Status OtherExceptionStatus();

// What `body`, which returns a Status or StatusOr, returns; of an exception the status that it
// carries, else Unknown with its text, or with its type where it has none.
template <typename Body>
std::invoke_result_t<const Body&> CatchTorch(const Body& body) {
  try {
    return body();
  } catch (const StatusException& e) {
    return e.status();
  } catch (const c10::Error& e) {
    return absl::UnknownError(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return absl::UnknownError(e.what());
  } catch (const abi::__forced_unwind&) {  // The thread is being cancelled.
    throw;
  } catch (...) {
    return OtherExceptionStatus();
  }
}

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_TORCH_STATUS_H_
