#!/bin/bash
# A new version of a package whose headers the build reads is a new key for all actions, that of any
# other package is not: over a copy of this machine's own package database.
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! command -v dpkg-query >/dev/null; then
  echo "SKIPPED: no dpkg here"
  exit 0
fi

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# A tree that has nothing but what tools/bazel needs.
mkdir -p "$work/tree/tools" "$work/dpkg"
cp "$tools/bazel" "$tools/common.sh" "$tools/system-versions" "$work/tree/tools/"
for part in /var/lib/dpkg/*; do ln -s "$part" "$work/dpkg/"; done
rm "$work/dpkg/status"
cp /var/lib/dpkg/status "$work/dpkg/status"

# settings: what tools/bazel tells Bazel in the state of the database copy.
settings() {
  env DPKG_ADMINDIR="$work/dpkg" XDG_CACHE_HOME="$work/cache" BAZEL_REAL=/bin/true "$work/tree/tools/bazel" build
  cat "$work/tree/.cache/system.bazelrc"
}

# upgrade PACKAGE: its version in the database copy has a suffix more.
upgrade() {
  awk -v package="$1" '
    /^Package: / { here = $2 == package }
    here && /^Version: / { $0 = $0 "+touched" }
    { print }' "$work/dpkg/status" >"$work/dpkg/status.new"
  ! cmp -s "$work/dpkg/status" "$work/dpkg/status.new" || fail "$1 is not installed"
  mv "$work/dpkg/status.new" "$work/dpkg/status"
}

first=$(settings)
case $first in
  *"build --action_env=TESSERA_SYSTEM="*" --disk_cache=$work/cache/tessera/bazel"*) ;;
  *) fail "no key or no cache: $first" ;;
esac
[ "$(settings)" = "$first" ] || fail "the same packages have two keys"
upgrade dpkg
[ "$(settings)" = "$first" ] || fail "a package without headers changes the key"
for package in libgrpc++-dev libtorch-dev g++-12 protobuf-compiler; do
  before=$(settings)
  upgrade "$package"
  [ "$(settings)" != "$before" ] || fail "a new version of $package has the old key"
done
echo "PASSED"
