#!/usr/bin/env bash
# Lets systemd-analyze read the units in a tree of their own, where the programs that they name are
# there. Passes, and says so, where systemd is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if ! command -v systemd-analyze >/dev/null 2>&1; then
  echo "verify.sh: no systemd-analyze here; nothing checked" >&2
  exit 0
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/etc/systemd/system "$root"/usr/{bin,libexec/tessera,lib/systemd,share/doc/tessera}
cp -r /usr/lib/systemd/system "$root/usr/lib/systemd/" 2>/dev/null || cp -r /lib/systemd/system "$root/usr/lib/systemd/"
cp ./*.service "$root/etc/systemd/system/"
for program in bin/tessera-coordinator bin/tessera-worker libexec/tessera/tessera-executor; do
  printf '#!/bin/sh\n' >"$root/usr/$program"
  chmod +x "$root/usr/$program"
done
findings=$(systemd-analyze verify --man=no --root="$root" tessera-coordinator.service \
  tessera-worker.service 2>&1 | grep -E 'tessera' || true)
if [ -n "$findings" ]; then
  printf '%s\n' "$findings" >&2
  exit 1
fi
