# shellcheck shell=bash
# Read by scripts that write packages, at the top of the tree. Sets `folder`, where the packages go: the only argument of
# the script, or $CARGO_TARGET_DIR/package, by default target/package; and `version`.
export LC_ALL=C

[ $# -le 1 ] || { echo "usage: $0 [FOLDER]" >&2; exit 2; }
folder=${1:-${CARGO_TARGET_DIR:-target}/package}
mkdir -p "$folder"
folder=$(realpath "$folder")
# shellcheck disable=SC2034 # for the script
version=$(scripts/version)
