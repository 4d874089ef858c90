// Stands before libc's clocks (LD_PRELOAD), and sets a process's wall clock back or forth while it
// runs: by as many seconds as the file that TESSERA_WALL_CLOCK names has as its first eight bytes,
// at each moment. What waits for a time of the wall clock waits by that one, as the kernel has it
// wait when the clock is set.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kSliceNs = 10'000'000;

long Kernel(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

long Returned(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

int64_t ShiftSeconds() {
  static const volatile int64_t* const shift = [] {
    static const int64_t none = 0;
    const char* path = getenv("TESSERA_WALL_CLOCK");
    const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return &none;
    void* map = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return map == MAP_FAILED ? &none : static_cast<const int64_t*>(map);
  }();
  return *shift;
}

int64_t NowNs(clockid_t clock) {
  timespec now;
  Kernel(SYS_clock_gettime, clock, reinterpret_cast<long>(&now), 0, 0, 0, 0);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

// FUTEX_WAIT_BITSET until a time of the wall clock.
long WaitByWallClock(long word, long op, long expected, const timespec& until, long bits) {
  const int64_t until_ns = until.tv_sec * kNsPerSecond + until.tv_nsec;
  while (true) {
    const int64_t left_ns = until_ns - (NowNs(CLOCK_REALTIME) + ShiftSeconds() * kNsPerSecond);
    if (left_ns <= 0) return -ETIMEDOUT;
    const int64_t slice_end = NowNs(CLOCK_MONOTONIC) + (left_ns < kSliceNs ? left_ns : kSliceNs);
    const timespec at = {slice_end / kNsPerSecond, slice_end % kNsPerSecond};
    const long result = Kernel(SYS_futex, word, op & ~FUTEX_CLOCK_REALTIME, expected,
                               reinterpret_cast<long>(&at), 0, bits);
    if (result != -ETIMEDOUT) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  const long result = Kernel(SYS_clock_gettime, clock, reinterpret_cast<long>(now), 0, 0, 0, 0);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += ShiftSeconds();
  return static_cast<int>(Returned(result));
}

int gettimeofday(timeval* now, void*) {
  timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* out) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

long syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[6];
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  const auto* until = reinterpret_cast<const timespec*>(a[3]);
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && until != nullptr)
    return Returned(WaitByWallClock(a[0], a[1], a[2], *until, a[5]));
  return Returned(Kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

}  // extern "C"
