#!/usr/bin/env bash
# Runs one test under a sanitizer (--run_under of .bazelrc): a report fails it in whichever of its
# processes it comes up, also in one whose end the test expects and recovers from.
set -uo pipefail

reports=$(mktemp -d "${TEST_TMPDIR:-/tmp}/reports.XXXXXX")
for options in ASAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS; do
  export "$options=${!options:+${!options}:}log_path=$reports/${options%_OPTIONS}"
done

TSAN_OPTIONS+=":suppressions=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/tsan_suppressions.txt"

"$@"
status=$?
for report in "$reports"/*; do
  [ -s "$report" ] || continue
  echo "--- report of process ${report##*.}"
  cat "$report"
  status=1
done >&2
exit "$status"
