# shellcheck shell=sh
# Shared by the scripts of tools/; sourced, not run. The caller has set -eu or bash's strict mode.

# say TEXT...: progress for a person, on stderr, so that stdout stays for results.
say() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
}

die() {
  say "$*"
  exit 1
}

# missing_packages NAME...: prints those that dpkg does not have installed.
missing_packages() {
  # It fails for a name that dpkg never heard of.
  { dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true; } |
    awk -v want="$*" '
      $1 == "installed" { have[$2] = 1 }
      END { n = split(want, names, " "); for (i = 1; i <= n; i++) if (!have[names[i]]) print names[i] }'
}

# as_root COMMAND...: runs it as root, asking nobody anything; needs can_be_root.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() {
  [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

# install_packages NAME...: installs what is missing by apt; silent when nothing is.
# shellcheck disable=SC2086 # $missing is a list of names
install_packages() {
  missing=$(missing_packages "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null 2>&1 || die "no apt-get here; please install: $missing"
  can_be_root || die "needs root, or sudo without a password, to install: $missing"
  say "installing $missing"
  apt_log=$(mktemp)
  if ! { as_root apt-get update -qq &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      -o DPkg::Lock::Timeout=300 $missing; } </dev/null >"$apt_log" 2>&1; then
    tail -n 40 "$apt_log" >&2
    rm -f "$apt_log"
    die "apt-get could not install: $missing"
  fi
  rm -f "$apt_log"
  missing=$(missing_packages $missing | tr '\n' ' ')
  [ -z "$missing" ] || die "still missing after apt-get install: $missing"
}

has_home() {
  [ -n "${HOME:-}" ] && [ -d "$HOME" ] && [ -w "$HOME" ]
}

# bazel_here ARGUMENT...: bazel, also where HOME is unset or cannot be written to.
bazel_here() {
  if has_home; then
    bazel "$@"
  else
    env HOME="${TMPDIR:-/tmp}" bazel \
      --output_user_root="${TMPDIR:-/tmp}/tessera-bazel-$(id -u)" "$@"
  fi
}

# cache_folder: prints where builds of all this user's checkouts keep what they made.
cache_folder() {
  if [ -n "${XDG_CACHE_HOME:-}" ]; then
    echo "$XDG_CACHE_HOME/tessera/bazel"
  elif has_home; then
    echo "$HOME/.cache/tessera/bazel"
  else
    echo "${TMPDIR:-/tmp}/tessera-cache-$(id -u)/bazel"
  fi
}

# trim_cache MEGABYTES: removes from there what was not read for longest, until that much is left.
trim_cache() {
  [ -d "$(cache_folder)" ] || return 0
  find "$(cache_folder)" -type f -printf '%A@ %s %p\n' | LC_ALL=C sort -rn |
    awk -v max="$1" '{ sum += $2 } sum > max * 1e6 { sub(/^[^ ]+ [^ ]+ /, ""); print }' |
    tr '\n' '\0' | xargs -0 -r rm -f
}

# python_venv FOLDER REQUIREMENTS: a virtual environment with just those packages from PyPI, made
# again when the file changes. It keeps a copy of what it was made from, written last. Its Python is
# Debian's, which is what is measured: one that pyenv had compiled as it does by default took 1.4
# times as long for calls of functions. Fails where PyPI cannot be reached.
python_venv() {
  if cmp -s "$2" "$1/requirements.txt"; then return; fi
  /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
  say "installing $(tr '\n' ' ' <"$2")into $1"
  rm -rf "$1"
  mkdir -p "${1%/*}"
  /usr/bin/python3 -m venv "$1" &&
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 5 \
      -r "$2" >&2 &&
    cp "$2" "$1/requirements.txt"
}

# keep_golden MADE GOLDEN WHO CHECK: what WHO said just now takes the place of the golden file, or,
# where CHECK is --check, has to be the same.
keep_golden() {
  if cmp -s "$1" "$2"; then
    say "$2 is what $3 says"
  elif [ "$4" = --check ]; then
    die "$3 says something else than $2"
  else
    cat "$1" >"$2"
    say "wrote $2"
  fi
}
