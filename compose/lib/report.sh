# shellcheck shell=bash
# What the scripts here tell their user: all of it on standard error, so that
# standard output holds answers only. PROGRAM names the script.

PROGRAM=${PROGRAM:-stack}

say() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

fail() {
  printf '%s: error: %s\n' "$PROGRAM" "$*" >&2
  exit 1
}

# The end of a log, indented, for the reader of an error.
show_tail() {
  local log=$1
  [[ -s $log ]] || return 0
  say "the end of $log:"
  tail -n 25 -- "$log" | sed 's/^/    /' >&2
}
