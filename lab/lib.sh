# shellcheck shell=bash
# What the lab's scripts share: messages, exit statuses, the cache.

# Exit statuses of the lab itself (the command's own status passes through otherwise).
# shellcheck disable=SC2034  # used by the scripts that read this file
{
    LAB_TIME_LIMIT_STATUS=124 # as timeout(1)
    LAB_FAILED=125            # the lab could not start, or its kernel died
    LAB_UNAVAILABLE=77        # something optional cannot be had here: tests skip
}

say() { printf 'lab: %s\n' "$*" >&2; }

die() {
    local status=$1
    shift
    say "$@"
    exit "$status"
}

# The folder in which kernels and reference roots are kept, one for the machine's user.
cache_dir() {
    printf '%s\n' "${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/rdmacm-lab}"
}

# A short name for the contents of the given files.
hash_of() { cat -- "$@" | sha256sum | cut -c1-12; }

# Seconds since a start time taken from SECONDS, as m:ss.
elapsed() {
    local s=$((SECONDS - $1))
    printf '%d:%02d' $((s / 60)) $((s % 60))
}
