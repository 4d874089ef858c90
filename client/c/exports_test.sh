#!/bin/sh
# What libtessera.so exports is what client/c/exports.txt lists: a name that goes breaks programs,
# and a new one is in the header from then on.
set -eu
nm -D --defined-only --extern-only client/c/libtessera.so | awk '$3 ~ /^tessera_/ { sub(/@.*/, "", $3); print $3 }' | sort >"$TEST_TMPDIR/exported"
others=$(nm -D --defined-only --extern-only client/c/libtessera.so | awk '$3 !~ /^tessera_/ && $3 !~ /^TESSERA_/ { print $3 }')
[ -z "$others" ] || { echo "exports more than tessera_*: $others"; exit 1; }
sed -n 's/^TESSERA_API .*[ *]\(tessera_[a-z_0-9]*\)(.*/\1/p' client/c/tessera.h | sort >"$TEST_TMPDIR/declared"
diff "$TEST_TMPDIR/declared" "$TEST_TMPDIR/exported" || { echo "the header and the library differ"; exit 1; }
diff client/c/exports.txt "$TEST_TMPDIR/exported" ||
  { echo "client/c/exports.txt differs: a change of what programs can rely on"; exit 1; }
