// Whether this build keeps what was freed for a while (AddressSanitizer does, 256 MiB of it), or
// shadow memory for each byte that is touched (ThreadSanitizer does), so that a process's memory
// says nothing of what it needs.
#ifndef TESSERA_TESTS_TESTING_FREED_MEMORY_H_
#define TESSERA_TESTS_TESTING_FREED_MEMORY_H_

#ifndef __has_feature
#define __has_feature(feature) 0
#endif

namespace tessera::testing_support {

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || \
    defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kKeepsFreedMemory = true;
#else
inline constexpr bool kKeepsFreedMemory = false;
#endif

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_FREED_MEMORY_H_
